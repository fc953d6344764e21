//! The cases of the sampler: what is kept, what is drawn, and that the draw depends on seed and position alone.

use super::*;

fn kernels() -> KernelSet {
    KernelSet::by_name("scalar").expect("the scalar set is always available")
}

fn off() -> SamplingParams {
    SamplingParams { top_p: 1.0, ..SamplingParams::default() }
}

fn weights(logits: &[f32], temperature: f32) -> Vec<f32> {
    let mut weights = Vec::new();
    relative_weights(&kernels(), logits, logits[argmax(logits)], temperature, &mut weights);
    weights
}

fn kept(logits: &[f32], params: SamplingParams) -> Vec<u32> {
    keep(logits, &weights(logits, params.temperature), &params)
}

/// A wide row of pseudo-random logits.
fn wide(vocab: usize) -> Vec<f32> {
    (0..vocab as u64).map(|index| (uniform(3, index) * 24.0 - 12.0) as f32).collect()
}

#[test]
fn top_k_zero_is_off_and_draws_follow_the_probabilities() {
    let logits = [0.0, 5.0, 1.0];
    let mut counts = [0; 3];
    for seed in 0..1000 {
        let params = SamplingParams { seed, ..off() };
        counts[choose(&kernels(), &logits, &params, 7, None).unwrap().token as usize] += 1;
    }
    assert!((950..=990).contains(&counts[1]), "{counts:?}");
    assert!(counts[0] < 30 && counts[2] > 0, "{counts:?}");
    assert_eq!(kept(&logits, SamplingParams { top_k: 1000, ..off() }).len(), 3);
}

#[test]
fn the_repetition_penalty_lowers_logits_of_both_signs() {
    let params = SamplingParams { repeat_penalty: 2.0, ..SamplingParams::greedy() };
    assert_eq!(sample(&kernels(), &[-2.0, -2.1], &[0], &params, None).unwrap().token, 1);
    assert_eq!(sample(&kernels(), &[4.0, 2.1], &[0], &params, None).unwrap().token, 1);
}

#[test]
fn presence_counts_once_and_frequency_each_time() {
    let mut row = [1.0, 1.0, 1.0];
    let params = SamplingParams { presence_penalty: 0.5, frequency_penalty: 0.25, ..off() };
    penalise(&mut row, &[0, 0, 2, 99], &params);
    assert_eq!(row, [0.0, 1.0, 0.25]);
}

#[test]
fn values_out_of_range_are_named() {
    let faults = [
        SamplingParams { repeat_penalty: 0.0, ..off() },
        SamplingParams { repeat_penalty: -1.0, ..off() },
        SamplingParams { repeat_penalty: f32::NAN, ..off() },
        SamplingParams { repeat_penalty: 1e9, ..off() },
        SamplingParams { temperature: -1.0, ..off() },
        SamplingParams { temperature: f32::INFINITY, ..off() },
        SamplingParams { top_p: 1.5, ..off() },
        SamplingParams { top_p: -0.1, ..off() },
        SamplingParams { min_p: 2.0, ..off() },
        SamplingParams { presence_penalty: 2.5, ..off() },
        SamplingParams { frequency_penalty: f32::NAN, ..off() },
    ];
    for params in faults {
        let error = choose(&kernels(), &[0.0, 1.0], &params, 0, None).unwrap_err();
        assert_eq!(error.code(), "invalid_value", "{params:?}");
    }
}

#[test]
fn the_nucleus_is_never_empty_and_ties_go_to_the_lower_identifier() {
    let logits = [0.0; 4];
    for (top_p, expected) in [(0.0, vec![0]), (1e-9, vec![0]), (0.5, vec![0, 1]), (0.51, vec![0, 1, 2])] {
        assert_eq!(kept(&logits, SamplingParams { top_p, ..off() }), expected, "top_p {top_p}");
    }
    assert_eq!(kept(&[0.0, -0.0, 0.0], SamplingParams { top_k: 2, ..off() }), [0, 1]);
    assert_eq!(kept(&[1.0, 0.0, 1.0], SamplingParams { min_p: 1.0, ..off() }), [0, 2]);
}

#[test]
fn every_random_number_draws_a_kept_token() {
    let logits = wide(151_552);
    let params = SamplingParams { top_k: 20, ..off() };
    let allowed = kept(&logits, params);
    assert_eq!(allowed.len(), 20);
    let largest = logits[argmax(&logits)];
    for u in [0.0, 0.5, 1.0 - (0.5_f64).powi(24), 1.0 - (0.5_f64).powi(53)] {
        let token = draw(&kernels(), &logits, largest, &params, u);
        assert!(allowed.contains(&token), "u {u}");
    }
    assert_eq!(draw(&kernels(), &logits, largest, &params, 0.0), allowed[0]);
    assert_eq!(draw(&kernels(), &logits, largest, &params, 1.0 - (0.5_f64).powi(53)), allowed[19]);
}

#[test]
fn selection_in_blocks_equals_a_full_sort() {
    let logits = wide(5000);
    let weights = weights(&logits, 3.0);
    let mut order: Vec<u32> = (0..5000).collect();
    order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
    for top_p in [0.01_f32, 0.3, 0.9, 0.999] {
        let total: f64 = (0..5000_usize).map(|index| f64::from(weights[index])).sum();
        let mut sum = 0.0;
        let reached = |token: &u32| {
            sum += f64::from(weights[*token as usize]);
            sum >= f64::from(top_p) * total
        };
        let length = order.iter().position(reached).unwrap() + 1;
        let params = SamplingParams { top_p, temperature: 3.0, ..off() };
        assert_eq!(kept(&logits, params), order[..length], "top_p {top_p}");
    }
}

#[test]
fn greedy_takes_the_lowest_of_equals_and_skips_nan() {
    let greedy = SamplingParams::greedy();
    let token = |logits: &[f32]| choose(&kernels(), logits, &greedy, 0, None).map(|sampled| sampled.token);
    assert_eq!(token(&[f32::NAN, 2.0, 3.0, 3.0]).unwrap(), 2);
    assert_eq!(token(&[f32::NEG_INFINITY, -5.0]).unwrap(), 1);
    assert_eq!(token(&[0.0, f32::INFINITY]).unwrap(), 1);
    for row in [vec![f32::NAN; 3], vec![f32::NEG_INFINITY; 3], vec![]] {
        assert_eq!(token(&row).unwrap_err().code(), "non_finite");
    }
}

#[test]
fn a_masked_token_is_never_drawn() {
    let logits = [f32::NEG_INFINITY, 0.0, f32::NAN, -0.1];
    for seed in 0..500 {
        let params = SamplingParams { seed, temperature: 100.0, ..off() };
        let token = choose(&kernels(), &logits, &params, 3, None).unwrap().token;
        assert!(token == 1 || token == 3);
    }
}

#[test]
fn a_tiny_temperature_is_greedy_and_a_small_nucleus_too() {
    let logits = wide(1000);
    for params in
        [SamplingParams { temperature: 1e-30, ..off() }, SamplingParams { top_p: 0.0, temperature: 5.0, ..off() }]
    {
        for position in 0..50 {
            assert_eq!(choose(&kernels(), &logits, &params, position, None).unwrap().token as usize, argmax(&logits));
        }
    }
}

#[test]
fn the_log_probability_is_that_of_the_row_before_temperature() {
    let logits = [1.0, 2.0, 3.0];
    let sampled =
        choose(&kernels(), &logits, &SamplingParams { temperature: 9.0, top_k: 1, ..off() }, 0, None).unwrap();
    let expected = 3.0 - (1_f64.exp() + 2_f64.exp() + 3_f64.exp()).ln();
    assert!((f64::from(sampled.logprob) - expected).abs() < 1e-6, "{sampled:?}");
}

#[test]
fn random_numbers_depend_on_seed_and_position_alone() {
    assert_eq!(uniform(1, 2), uniform(1, 2));
    let mut numbers: Vec<f64> =
        (0..100).flat_map(|seed| (0..100).map(move |position| uniform(seed, position))).collect();
    let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
    assert!((mean - 0.5).abs() < 0.01, "{mean}");
    assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
    numbers.sort_by(f64::total_cmp);
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "a number repeats");
}

#[test]
fn random_numbers_are_frozen() {
    // A changed generator would change every seeded answer.
    let bits: Vec<u64> = [(0, 0), (0, 1), (1, 0), (u64::MAX, u64::MAX)]
        .map(|(seed, position)| (uniform(seed, position) * (1_u64 << 53) as f64) as u64)
        .to_vec();
    assert_eq!(bits, FROZEN);
}

const FROZEN: [u64; 4] = [5_876_733_520_225_071, 6_315_957_190_297_641, 3_316_356_330_981_164, 2_403_545_779_318_817];

/// A mask over `vocab` tokens.
fn only(vocab: usize, tokens: &[u32]) -> TokenMask {
    let mut mask = TokenMask::none(vocab);
    tokens.iter().for_each(|token| mask.allow(*token));
    mask
}

/// Every option on its own and all together.
fn every_option() -> Vec<SamplingParams> {
    let all = SamplingParams {
        temperature: 0.7,
        top_p: 0.9,
        top_k: 12,
        min_p: 0.02,
        repeat_penalty: 1.2,
        presence_penalty: 0.3,
        frequency_penalty: 0.1,
        seed: 4,
    };
    vec![
        off(),
        SamplingParams::greedy(),
        SamplingParams { temperature: 2.0, ..off() },
        SamplingParams { top_p: 0.6, ..off() },
        SamplingParams { top_k: 5, ..off() },
        SamplingParams { min_p: 0.1, ..off() },
        SamplingParams { temperature: 0.0, ..all },
        all,
    ]
}

#[test]
fn a_mask_of_everything_changes_nothing_and_a_narrow_one_is_kept_with_every_option() {
    let (row, history) = (wide(500), [3, 3, 9, 200, 499]);
    let everything = only(500, &(0..500).collect::<Vec<_>>());
    let narrow = only(500, &[0, 63, 64, 77, 200, 310, 499]);
    for params in every_option() {
        for seed in 0..40 {
            let params = SamplingParams { seed, ..params };
            let free = sample(&kernels(), &row, &history, &params, None).unwrap();
            assert_eq!(sample(&kernels(), &row, &history, &params, Some(&everything)).unwrap(), free);
            let held = sample(&kernels(), &row, &history, &params, Some(&narrow)).unwrap();
            assert!(narrow.allows(held.token), "{params:?}");
            // Another way to the same choice: a row in which the others are impossible already.
            let mut less = row.clone();
            penalise(&mut less, &history, &params);
            (0..500).filter(|token| !narrow.allows(*token)).for_each(|token| less[token as usize] = f32::NEG_INFINITY);
            assert_eq!(choose(&kernels(), &less, &params, 5, None).unwrap().token, held.token, "{params:?}");
        }
    }
}

#[test]
fn the_logprob_is_that_of_the_row_before_the_mask() {
    let row = [2.0, 1.0, 0.0, -1.0];
    let free: Vec<f32> = (0..4)
        .map(|token| choose(&kernels(), &row, &off(), 0, Some(&only(4, &[token]))).unwrap())
        .map(|sampled| sampled.logprob)
        .collect();
    let total: f32 = free.iter().map(|logprob| logprob.exp()).sum();
    assert!((total - 1.0).abs() < 1e-6, "{free:?}");
    assert_eq!(choose(&kernels(), &row, &SamplingParams::greedy(), 0, None).unwrap().logprob, free[0]);
}

#[test]
fn a_mask_that_leaves_nothing_is_a_dead_end_that_says_why() {
    let (none, second) = (only(3, &[]), only(3, &[1]));
    let row = [1.0, f32::NEG_INFINITY, 2.0];
    for params in every_option() {
        let empty = choose(&kernels(), &row, &params, 3, Some(&none)).unwrap_err();
        let blocked = choose(&kernels(), &row, &params, 3, Some(&second)).unwrap_err();
        assert_eq!((empty.code(), blocked.code()), ("grammar_dead_end", "grammar_dead_end"));
        assert!(empty.why() != blocked.why() && empty.fix() != blocked.fix());
        let damaged = choose(&kernels(), &[f32::NAN; 3], &params, 3, Some(&second)).unwrap_err();
        assert_eq!(damaged.code(), "non_finite", "a damaged row is no fault of the grammar");
    }
}

#[test]
fn what_lies_outside_of_the_mask_may_be_anything() {
    let row = [f32::INFINITY, f32::NAN, 0.5, 0.25];
    for params in every_option() {
        let sampled = choose(&kernels(), &row, &params, 0, Some(&only(4, &[1, 2]))).unwrap();
        assert_eq!((sampled.token, sampled.logprob), (2, f32::NEG_INFINITY));
        assert_eq!(choose(&kernels(), &row, &params, 0, Some(&only(2, &[0]))).unwrap().token, 0);
    }
}
