"""Settings of the site, and nothing else; what they switch on is in extensions/."""

import doctest
import os
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "PyTorch, Answered"
author = "The PyTorch, Answered contributors"
project_copyright = f"2026, {author}"
version = version_of("torch").partition("+")[0]  # the release this edition answers for
language = "en"
smartquotes = False  # an error message in a heading keeps its quotes

extensions = [
    "myst_parser",
    "sphinx_copybutton",
    "sphinxext.opengraph",
    "notfound.extension",
    "strict_doctest",
    "chapters",
    "drill",
    "predict",
    "exercises",
    "error_index",
    "myths",
    "for_machines",
    "inline_svg",
    "gallery",
    "gallery_pages",
    "recordings",
    "references",
    "mathml",
    "accessibility",
    "run_chapter",
    "downloads",
    "epub",
    "anki_deck",
    "site_search",
    "light_pages",
]
exclude_patterns = ["gallery/*/GALLERY_HEADER.rst"]
nitpicky = True
highlight_language = "none"

# Markdown
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# Examples
doctest_test_doctest_blocks = ""
# Sphinx's default also ignores what an exception says.
doctest_default_flags = doctest.ELLIPSIS | doctest.DONT_ACCEPT_TRUE_FOR_1
doctest_global_setup = "import torch_state; torch_state.reset()"
checked_examples = "../build/doctest/examples.json"

sphinx_gallery_conf = {
    "examples_dirs": "../gallery",
    "gallery_dirs": "gallery",
    "filename_pattern": "",  # every script runs
    "within_subsection_order": "FileNameSortKey",
    "image_scrapers": ("drawings.graphs", "drawings.figures"),
    "reset_modules": ("matplotlib", "gallery.reset"),
    "reset_modules_order": "both",
    "capture_repr": (),  # a page shows what the script prints, no more
    "inspect_global_variables": False,  # links from names of torch's, not from each variable
    "css": (),
    "download_all_examples": False,
    "write_computation_times": False,  # that page takes scripts from other hosts
    "min_reported_time": 1_000_000,
    "show_signature": False,
}

# Pages
html_theme = "furo"
html_title = project
html_baseurl = os.environ.get("SITE_URL", "https://pytorch-answered.github.io/")
html_static_path = ["static"]
html_css_files = ["site.css"]
html_favicon = "static/favicon.svg"
templates_path = ["templates"]
html_theme_options = {"top_of_page_buttons": ["edit"]}
# For "edit this page"; the workflow that publishes the site knows where it comes from.
html_context = {"repository": os.environ.get("SITE_REPOSITORY", "")}
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_use_index = False
html_math_renderer = "mathml"
copybutton_selector = "div:not(.sphx-glr-script-out) > div.highlight pre"
copybutton_prompt_text = r">>> |\.\.\. |\.\.\.$"
copybutton_copy_empty_lines = False
copybutton_prompt_is_regexp = True
notfound_urls_prefix = urlsplit(html_baseurl).path
ogp_site_url = html_baseurl
ogp_image = "_static/card.png"
ogp_social_cards = {"enable": False}  # one picture serves every page

# Downloads
downloads_folder = "../build/downloads"
epub_basename = "pytorch-answered"
epub_identifier = epub_uid = "pytorch-answered"
epub_description = "The questions engineers are asked about PyTorch, answered by code that was run."
epub_contributor = author
epub_css_files = ["site.css", "book.css"]
epub_exclude_files = ["downloads.xhtml", "drill.xhtml"]  # pages that make sense only on the site
epub_show_urls = "no"
epub_tocdup = False
epub_tocscope = "includehidden"
