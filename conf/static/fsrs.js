"use strict";

/* When a card comes back: FSRS-6, the Free Spaced Repetition Scheduler, in the version published as
 * py-fsrs 6.3.2, with its default parameters, a retention of 0.9, no fuzz, and one step of ten
 * minutes for what is being learned (again). tests/test_drill.py compares it with that package. */

const fsrs = (() => {
  const W = [
    0.212, 1.2931, 2.3065, 8.2956, 6.4133, 0.8334, 3.0194, 0.001, 1.8722, 0.1666, 0.796,
    1.4835, 0.0614, 0.2629, 1.6483, 0.6014, 1.8729, 0.5425, 0.0912, 0.0658, 0.1542,
  ];
  const [AGAIN, HARD, GOOD, EASY] = [1, 2, 3, 4];
  const STEP = 10;
  const LONGEST = 36500;

  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  const firstDifficulty = (grade) => W[4] - Math.exp(W[5] * (grade - 1)) + 1;

  /** Return the probability that a card of this stability is still known after `days`. */
  function retrievability(stability, days) {
    const factor = 0.9 ** (-1 / W[20]) - 1;
    return (1 + (factor * days) / stability) ** -W[20];
  }

  function nextDifficulty(difficulty, grade) {
    const changed = difficulty - (W[6] * (grade - GOOD) * (10 - difficulty)) / 9;
    return clamp(W[7] * firstDifficulty(EASY) + (1 - W[7]) * changed, 1, 10);
  }

  function sameDay(stability, grade) {
    const growth = Math.exp(W[17] * (grade - GOOD + W[18])) * stability ** -W[19];
    return stability * (grade === AGAIN ? growth : Math.max(growth, 1));
  }

  function forgotten({ stability, difficulty }, recall) {
    const growth = (stability + 1) ** W[13] - 1;
    const long = W[11] * difficulty ** -W[12] * growth * Math.exp((1 - recall) * W[14]);
    return Math.min(long, stability / Math.exp(W[17] * W[18]));
  }

  function recalled({ stability, difficulty }, recall, grade) {
    const ease = grade === HARD ? W[15] : grade === EASY ? W[16] : 1;
    const surprise = Math.exp((1 - recall) * W[10]) - 1;
    const growth = Math.exp(W[8]) * (11 - difficulty) * stability ** -W[9] * surprise * ease;
    return stability * (1 + growth);
  }

  function nextStability(memory, grade, days) {
    if (days < 1) return sameDay(memory.stability, grade);
    const recall = retrievability(memory.stability, days);
    return grade === AGAIN ? forgotten(memory, recall) : recalled(memory, recall, grade);
  }

  /**
   * Return a card's memory after a review, and when it is due: in `minutes` or in `days`.
   *
   * `memory` is {stability (days), difficulty (1 to 10), learning} or null for a new card, `grade`
   * 1 (again) to 4 (easy), `days` the whole days since the last review.
   */
  function review(memory, grade, days) {
    const stability = memory ? nextStability(memory, grade, days) : W[grade - 1];
    const difficulty = memory
      ? nextDifficulty(memory.difficulty, grade)
      : clamp(firstDifficulty(grade), 1, 10);
    const next = { stability: Math.max(stability, 0.001), difficulty };
    const known = memory !== null && !memory.learning;
    if (grade === AGAIN) return { ...next, learning: true, minutes: STEP };
    if (grade === HARD && !known) return { ...next, learning: true, minutes: 1.5 * STEP };
    // At a retention of 0.9 the interval is the stability, by the definition of both.
    return { ...next, learning: false, days: clamp(Math.round(next.stability), 1, LONGEST) };
  }

  return { review };
})();
