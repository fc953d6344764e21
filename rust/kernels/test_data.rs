//! Reproducible random numbers and matrices for the tests of this crate.

use crate::format::Format;
use crate::matrix::MatrixView;

/// A small linear congruential generator (Knuth's MMIX constants), upper bits used.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d)
    }

    fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        self.bits() % limit
    }

    /// Uniform in -1..1.
    pub(crate) fn value(&mut self) -> f32 {
        (self.bits() >> 7) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.value()).collect()
    }

    /// About standard normal: the sum of twelve uniform values.
    pub(crate) fn gaussian(&mut self) -> f32 {
        (0..12).map(|_| self.value()).sum::<f32>() / 2.0
    }
}

/// How the contents of a matrix are made.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fill {
    Random,
    /// Every code the smallest: -128, -8, -4 or -2.
    Low,
    /// Every code the largest: 127, 7, 3 or 1.
    High,
}

/// A matrix of any format, with contents that need no encoder.
pub(crate) struct Matrix {
    pub(crate) format: Format,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) codes: Vec<u8>,
    pub(crate) scales: Vec<f32>,
}

impl Matrix {
    pub(crate) fn new(random: &mut Random, format: Format, rows: usize, cols: usize, fill: Fill) -> Self {
        let int8 = format == Format::Int8Row;
        let mut codes: Vec<u8> = (0..format.code_bytes(rows, cols).unwrap())
            .map(|_| match fill {
                Fill::Random => random.below(256) as u8,
                Fill::Low => {
                    if int8 {
                        0x80
                    } else {
                        0x00
                    }
                }
                Fill::High => {
                    if int8 {
                        0x7f
                    } else {
                        0xff
                    }
                }
            })
            .collect();
        if !format.quantised() {
            // Random bit patterns would hold NaN: store numbers.
            let values = random.values(rows * cols);
            codes = match format {
                Format::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
                Format::Bf16 => values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect(),
                Format::Fp8Block => codes.iter().map(|byte| if byte & 0x7f == 0x7f { 0 } else { *byte }).collect(),
                _ => values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect(),
            };
        }
        let scales = random.values(format.scale_count(rows, cols).unwrap());
        Self { format, rows, cols, codes, scales }
    }

    pub(crate) fn view(&self) -> MatrixView<'_> {
        MatrixView::new(self.format, self.rows, self.cols, &self.codes, &self.scales).unwrap()
    }
}
