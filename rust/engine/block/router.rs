//! Choice of experts: sigmoid scores, a correction bias that acts on the choice alone, the choice limited to the best
//! groups (DeepSeek-V3, arXiv 2412.19437, section 2.1.2; `transformers` `DeepseekV3TopkRouter`). All in f32.
//!
//! Must hold: ties go to the lowest index; a group that lost cannot win through a negative bias (its scores become
//! negative infinity, not zero); weights come from the scores without the bias.

use colibri_kernels::dispatch::KernelSet;
use colibri_kernels::ops::top_k;

use crate::scratch::ChoiceScratch;
use crate::spec::RouterSpec;

/// Added to the sum of weights before the division, as in the reference implementation.
const SUM_EPSILON: f32 = 1e-20;

/// Chooses experts for one position. `logits` (`[experts]`) become scores; `experts` and `weights` (`[top_k]`) receive
/// the choice in router order: falling corrected score.
pub fn choose(
    kernels: &KernelSet,
    spec: &RouterSpec,
    logits: &mut [f32],
    bias: &[f32],
    scratch: &mut ChoiceScratch,
    experts: &mut [u32],
    weights: &mut [f32],
) {
    kernels.sigmoid(logits);
    choose_by_score(spec, logits, bias, scratch, experts, weights);
}

/// As [`choose`], for scores.
fn choose_by_score(
    spec: &RouterSpec,
    scores: &[f32],
    bias: &[f32],
    scratch: &mut ChoiceScratch,
    experts: &mut [u32],
    weights: &mut [f32],
) {
    let RouterSpec::SigmoidBias { top_k: count, groups, groups_kept, normalise, scale } = spec;
    scratch.biased.clear();
    scratch.biased.extend(scores.iter().zip(bias).map(|(score, bias)| score + bias));
    if groups_kept < groups {
        drop_groups(scores.len() / groups, *groups_kept, scratch);
    }
    top_k(&scratch.biased, *count, &mut scratch.chosen);
    for ((expert, weight), chosen) in experts.iter_mut().zip(weights.iter_mut()).zip(&scratch.chosen) {
        *expert = *chosen;
        *weight = scores[*chosen as usize];
    }
    if *normalise {
        let sum = weights.iter().sum::<f32>() + SUM_EPSILON;
        weights.iter_mut().for_each(|weight| *weight /= sum);
    }
    weights.iter_mut().for_each(|weight| *weight *= scale);
}

/// Sets the scores of all but the best groups to negative infinity; a group is worth its two best scores.
fn drop_groups(size: usize, kept: usize, scratch: &mut ChoiceScratch) {
    let worth = |group: &[f32]| {
        let (mut best, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for score in group {
            if *score > best {
                second = best;
                best = *score;
            } else if *score > second {
                second = *score;
            }
        }
        best + second
    };
    scratch.group_scores.clear();
    scratch.group_scores.extend(scratch.biased.chunks(size).map(worth));
    top_k(&scratch.group_scores, kept, &mut scratch.chosen);
    for (index, group) in scratch.biased.chunks_mut(size).enumerate() {
        if !scratch.chosen.iter().any(|chosen| *chosen as usize == index) {
            group.fill(f32::NEG_INFINITY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(spec: &RouterSpec, scores: &[f32], bias: &[f32]) -> (Vec<u32>, Vec<f32>) {
        let count = spec.top_k();
        let (mut experts, mut weights) = (vec![0; count], vec![0.0; count]);
        choose_by_score(spec, scores, bias, &mut ChoiceScratch::default(), &mut experts, &mut weights);
        (experts, weights)
    }

    fn spec(top_k: usize, groups: usize, groups_kept: usize, normalise: bool, scale: f32) -> RouterSpec {
        RouterSpec::SigmoidBias { top_k, groups, groups_kept, normalise, scale }
    }

    fn close(got: &[f32], expected: &[f32]) {
        assert_eq!(got.len(), expected.len());
        for (got, expected) in got.iter().zip(expected) {
            assert!((got - expected).abs() < 1e-5, "{got} is not {expected}");
        }
    }

    #[test]
    fn nu_01_weights_are_normalised_only_if_the_model_says_so() {
        let mut logits = [2.0, 1.0, 0.0, -1.0];
        let kernels = KernelSet::best();
        let (mut experts, mut weights) = ([0; 2], [0.0; 2]);
        let mut scratch = ChoiceScratch::default();
        let plain = spec(2, 1, 1, false, 1.0);
        choose(&kernels, &plain, &mut logits, &[0.0; 4], &mut scratch, &mut experts, &mut weights);
        assert_eq!(experts, [0, 1]);
        close(&weights, &[0.880_797, 0.731_059]);
        let (_, weights) = run(&spec(2, 1, 1, true, 1.0), &logits, &[0.0; 4]);
        close(&weights, &[0.880_797 / 1.611_856, 0.731_059 / 1.611_856]);
    }

    #[test]
    fn nu_03_a_group_that_lost_stays_out_when_all_scores_are_negative() {
        let (experts, _) = run(&spec(2, 2, 1, true, 1.0), &[0.2, 0.3, 0.45, 0.1], &[-1.0; 4]);
        assert_eq!(experts, [2, 3]);
    }

    #[test]
    fn nu_04_the_bias_chooses_and_does_not_weigh() {
        let (experts, weights) = run(&spec(2, 1, 1, true, 2.5), &[0.5, 0.4, 0.3], &[0.0, 0.0, 0.3]);
        assert_eq!(experts, [2, 0]);
        close(&weights, &[0.9375, 1.5625]);
        let (experts, _) = run(&spec(1, 1, 1, true, 1.0), &[0.5, 0.5], &[5.0001, 5.0002]);
        assert_eq!(experts, [1]);
    }

    #[test]
    fn ties_go_to_the_lowest_index_and_order_is_by_corrected_score() {
        let (experts, _) = run(&spec(3, 1, 1, true, 1.0), &[0.5, 0.9, 0.5, 0.5], &[0.0; 4]);
        assert_eq!(experts, [1, 0, 2]);
        let (experts, _) = run(&spec(2, 4, 2, true, 1.0), &[0.5; 8], &[0.0; 8]);
        assert_eq!(experts, [0, 1]);
    }

    #[test]
    fn the_choice_stays_within_the_kept_groups() {
        let scores = [0.9, 0.1, 0.6, 0.6, 0.8, 0.3, 0.2, 0.2];
        let (experts, _) = run(&spec(3, 4, 2, true, 1.0), &scores, &[0.0; 8]);
        assert_eq!(experts, [4, 2, 3]);
    }
}
