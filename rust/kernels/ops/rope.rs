//! Rotary position embedding: frequencies, the cosine and sine table, and the two rotations.
//!
//! Owns: the table of one rotary dimension, filled on demand in blocks of positions and shared by all
//! threads. Frequencies and angles are f32 as in `transformers` (`modeling_rope_utils`); sine and cosine
//! are taken in f64 by the `libm` crate and rounded once, so that no platform's libm shows.
//! Must hold: an entry depends on (spec, dimension, position) only.

use std::sync::OnceLock;

/// Positions per block of the table.
const BLOCK: usize = 64;
/// Blocks kept; positions from `BLOCK * BLOCKS` = 262,144 on are computed at each use.
const BLOCKS: usize = 4096;

/// How rotary frequencies are stretched beyond the trained context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Frequencies as trained.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// Stretch, at least 1.
        factor: f64,
    },
    /// YaRN (Peng et al. 2023), as `transformers` computes it.
    Yarn {
        /// Stretch of the context.
        factor: f64,
        /// Context the model was trained with before stretching.
        original_context: usize,
        /// Rotations within the original context above which a frequency is kept.
        beta_fast: f64,
        /// Rotations below which a frequency is divided by `factor`.
        beta_slow: f64,
        /// Whether the bounds of the ramp are rounded outwards to whole dimensions.
        truncate: bool,
        /// Multiplies cosine and sine; 1 leaves them unchanged.
        attention_factor: f64,
    },
}

/// Parameters of a rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeSpec {
    /// Base of the geometric row of frequencies.
    pub theta: f64,
    /// Stretching beyond the trained context.
    pub scaling: RopeScaling,
}

/// Cosines and sines of one rotary dimension, for every position asked for so far.
pub struct RopeTable {
    inverse_frequency: Vec<f32>, // [dim / 2]
    factor: f32,
    // each block: [BLOCK, 2, dim / 2], cosines then sines of a position
    blocks: Box<[OnceLock<Box<[f32]>>]>,
}

impl std::fmt::Debug for RopeTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RopeTable").field("dim", &self.dim()).finish_non_exhaustive()
    }
}

impl RopeTable {
    /// A table for `dim` rotated dimensions (an odd last one is left alone). Computes frequencies only.
    #[must_use]
    pub fn new(spec: &RopeSpec, dim: usize) -> Self {
        let factor = match spec.scaling {
            RopeScaling::Yarn { attention_factor, .. } => attention_factor as f32,
            RopeScaling::None | RopeScaling::Linear { .. } => 1.0,
        };
        Self {
            inverse_frequency: inverse_frequencies(spec, dim),
            factor,
            blocks: (0..BLOCKS).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Number of dimensions that are rotated.
    #[must_use]
    pub fn dim(&self) -> usize {
        2 * self.inverse_frequency.len()
    }

    /// Rotates the pairs `(x[2j], x[2j + 1])` of one head in place.
    pub fn rotate_interleaved(&self, position: usize, x: &mut [f32]) {
        self.with_angles(position, |cos, sin| {
            let (pairs, _) = x.as_chunks_mut::<2>();
            for ((pair, c), s) in pairs.iter_mut().zip(cos).zip(sin) {
                let [a, b] = *pair;
                *pair = [a * c - b * s, b * c + a * s];
            }
        });
    }

    /// Rotates the pairs `(x[j], x[j + dim / 2])` of one head in place.
    pub fn rotate_half(&self, position: usize, x: &mut [f32]) {
        let half = self.inverse_frequency.len().min(x.len());
        self.with_angles(position, |cos, sin| {
            let (low, high) = x.split_at_mut(half);
            for (((a, b), c), s) in low.iter_mut().zip(high).zip(cos).zip(sin) {
                (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
            }
        });
    }

    /// Calls `use_angles` with cosines and sines `[dim / 2]` of `position`.
    fn with_angles<R>(&self, position: usize, use_angles: impl FnOnce(&[f32], &[f32]) -> R) -> R {
        let half = self.inverse_frequency.len();
        let Some(slot) = self.blocks.get(position / BLOCK) else {
            let mut row = vec![0.0; 2 * half];
            self.fill_row(position, &mut row);
            let (cos, sin) = row.split_at(half);
            return use_angles(cos, sin);
        };
        let block = slot.get_or_init(|| {
            let mut rows = vec![0.0; BLOCK * 2 * half];
            let first = position - position % BLOCK;
            for (row, values) in rows.chunks_exact_mut((2 * half).max(1)).enumerate() {
                self.fill_row(first + row, values);
            }
            rows.into_boxed_slice()
        });
        let start = (position % BLOCK) * 2 * half;
        let (cos, sin) = block[start..start + 2 * half].split_at(half);
        use_angles(cos, sin)
    }

    fn fill_row(&self, position: usize, row: &mut [f32]) {
        let (cos, sin) = row.split_at_mut(self.inverse_frequency.len());
        for ((c, s), frequency) in cos.iter_mut().zip(sin).zip(&self.inverse_frequency) {
            let angle = f64::from(position as f32 * frequency);
            *c = libm::cos(angle) as f32 * self.factor;
            *s = libm::sin(angle) as f32 * self.factor;
        }
    }
}

/// `theta^(-2j / dim)` in f32, stretched as the spec says; `[dim / 2]`.
fn inverse_frequencies(spec: &RopeSpec, dim: usize) -> Vec<f32> {
    let theta = f64::from(spec.theta as f32);
    let wavelength = |pair: usize| {
        let exponent = (2 * pair) as f32 / dim as f32;
        libm::pow(theta, f64::from(exponent)) as f32
    };
    let pairs = 0..dim / 2;
    match spec.scaling {
        RopeScaling::None => pairs.map(|pair| 1.0 / wavelength(pair)).collect(),
        RopeScaling::Linear { factor } => pairs.map(|pair| (1.0 / wavelength(pair)) / factor as f32).collect(),
        RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, truncate, .. } => {
            let bound = |rotations: f64| {
                let turns = original_context as f64 / (rotations * 2.0 * std::f64::consts::PI);
                dim as f64 * libm::log(turns) / (2.0 * libm::log(spec.theta))
            };
            let (mut low, mut high) = (bound(beta_fast), bound(beta_slow));
            if truncate {
                (low, high) = (low.floor(), high.ceil());
            }
            let low = low.max(0.0);
            let mut high = high.min(dim as f64 - 1.0);
            if low == high {
                high += 0.001; // the ramp must have a slope
            }
            pairs
                .map(|pair| {
                    let ramp = (pair as f32 - low as f32) / (high - low) as f32;
                    let kept = 1.0 - ramp.clamp(0.0, 1.0);
                    let stretched = 1.0 / (factor as f32 * wavelength(pair));
                    stretched * (1.0 - kept) + (1.0 / wavelength(pair)) * kept
                })
                .collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: RopeSpec = RopeSpec { theta: 10_000.0, scaling: RopeScaling::None };

    fn reference(position: usize, pair: usize, dim: usize, theta: f64) -> (f64, f64) {
        let angle = position as f64 * theta.powf(-2.0 * pair as f64 / dim as f64);
        (angle.cos(), angle.sin())
    }

    #[test]
    fn both_layouts_rotate_the_same_pairs() {
        let table = RopeTable::new(&PLAIN, 8);
        for position in [0, 1, 63, 64, 2047, 300_000] {
            let mut pairs: Vec<f32> = (0..8).map(|i| i as f32 - 3.5).collect();
            let mut halves: Vec<f32> = (0..4).map(|j| pairs[2 * j]).collect();
            halves.extend((0..4).map(|j| pairs[2 * j + 1]));
            table.rotate_interleaved(position, &mut pairs);
            table.rotate_half(position, &mut halves);
            for j in 0..4 {
                assert_eq!(pairs[2 * j].to_bits(), halves[j].to_bits());
                assert_eq!(pairs[2 * j + 1].to_bits(), halves[j + 4].to_bits());
            }
        }
    }

    #[test]
    fn rotation_agrees_with_f64() {
        let dim = 64;
        let table = RopeTable::new(&PLAIN, dim);
        for position in [0usize, 1, 17, 1023] {
            let mut x: Vec<f32> = (0..dim).map(|i| (i as f32 * 0.37).sin()).collect();
            let before = x.clone();
            table.rotate_interleaved(position, &mut x);
            for pair in 0..dim / 2 {
                let (c, s) = reference(position, pair, dim, PLAIN.theta);
                let (a, b) = (f64::from(before[2 * pair]), f64::from(before[2 * pair + 1]));
                // The angle itself is rounded to f32, as in the reference implementation.
                let tolerance = 1e-6 + position as f64 * 1.2e-7;
                assert!((f64::from(x[2 * pair]) - (a * c - b * s)).abs() <= tolerance);
                assert!((f64::from(x[2 * pair + 1]) - (a * s + b * c)).abs() <= tolerance);
            }
        }
    }

    #[test]
    fn position_zero_changes_nothing_and_odd_tails_stay() {
        let table = RopeTable::new(&PLAIN, 5);
        assert_eq!(table.dim(), 4);
        let mut x = [1.0, -2.0, 3.0, 4.0, 5.0];
        table.rotate_interleaved(0, &mut x);
        assert_eq!(x, [1.0, -2.0, 3.0, 4.0, 5.0]);
        table.rotate_interleaved(3, &mut x);
        assert_eq!(x[4], 5.0);
        assert_ne!(x[0], 1.0);
    }

    #[test]
    fn linear_scaling_divides_positions() {
        let linear = RopeSpec { scaling: RopeScaling::Linear { factor: 4.0 }, ..PLAIN };
        let (stretched, plain) = (RopeTable::new(&linear, 16), RopeTable::new(&PLAIN, 16));
        let mut a: Vec<f32> = (0..16).map(|i| i as f32).collect();
        let mut b = a.clone();
        stretched.rotate_half(40, &mut a);
        plain.rotate_half(10, &mut b);
        for (x, y) in a.iter().zip(&b) {
            assert!((x - y).abs() < 1e-4, "{x} {y}");
        }
    }

    #[test]
    fn yarn_keeps_fast_and_stretches_slow_frequencies() {
        let yarn = RopeSpec {
            theta: 10_000.0,
            scaling: RopeScaling::Yarn {
                factor: 8.0,
                original_context: 4096,
                beta_fast: 32.0,
                beta_slow: 1.0,
                truncate: true,
                attention_factor: 1.25,
            },
        };
        let (stretched, plain) = (inverse_frequencies(&yarn, 64), inverse_frequencies(&PLAIN, 64));
        assert_eq!(stretched[0], plain[0]);
        assert!((stretched[31] * 8.0 / plain[31] - 1.0).abs() < 1e-6);
        for window in stretched.windows(2) {
            assert!(window[0] > window[1]);
        }
        let mut x = [1.0, 0.0];
        RopeTable::new(&yarn, 2).rotate_interleaved(0, &mut x);
        assert_eq!(x, [1.25, 0.0]);
    }
}
