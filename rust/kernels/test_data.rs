//! Reproducible random numbers for the tests of this crate.

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
