//! The scales of quantised weights: the types they are stored in, and their values in f32.
//!
//! Kernels take f32 scales. Other types occur in checkpoints: bf16 and f16, and the one-byte exponents of the OCP
//! microscaling formats (E8M0: `2^(byte - 127)`, 255 is NaN). Refuses scales that are not finite: one of them would spoil
//! a whole block of weights without a trace. Source of E8M0: OCP Microscaling Formats (MX) Specification 1.0, section 5.4.1.

use std::fmt;

use crate::container::Dtype;

/// How the scales of a weight are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ScaleType {
    /// IEEE binary32: what kernels take.
    #[default]
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    F16,
    /// A power of two: one byte of exponent, biased by 127.
    E8m0,
}

impl ScaleType {
    /// The type of scales that a tensor of this element type holds.
    #[must_use]
    pub fn of(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F32 => Some(Self::F32),
            Dtype::Bf16 => Some(Self::Bf16),
            Dtype::F16 => Some(Self::F16),
            Dtype::F8E8m0 => Some(Self::E8m0),
            _ => None,
        }
    }

    /// The name in a safetensors header.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => Dtype::F32.name(),
            Self::Bf16 => Dtype::Bf16.name(),
            Self::F16 => Dtype::F16.name(),
            Self::E8m0 => Dtype::F8E8m0.name(),
        }
    }

    /// Bytes of one scale.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::E8m0 => 1,
        }
    }
}

/// A scale that cannot be used; whoever knows the tensor names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadScale {
    /// Index of the scale in the tensor.
    pub at: usize,
    /// What was found there.
    pub got: String,
}

impl fmt::Display for BadScale {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "scale {}: expected a finite number, got {}", self.at, self.got)
    }
}

/// The values of stored scales, exactly.
///
/// # Errors
/// The first scale that is NaN or infinite, or bytes that are not whole scales.
pub fn decode(bytes: &[u8], kind: ScaleType) -> Result<Vec<f32>, BadScale> {
    let whole = bytes.len() / kind.bytes();
    let rest = bytes.len() % kind.bytes();
    if rest != 0 {
        return Err(BadScale { at: whole, got: format!("{rest} of its {} bytes", kind.bytes()) });
    }
    let half = |pair: &[u8; 2]| u16::from_le_bytes(*pair);
    let values: Vec<f32> = match kind {
        ScaleType::F32 => bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect(),
        ScaleType::Bf16 => {
            bytes.as_chunks::<2>().0.iter().map(|pair| f32::from_bits(u32::from(half(pair)) << 16)).collect()
        }
        ScaleType::F16 => bytes.as_chunks::<2>().0.iter().map(|pair| from_f16(half(pair))).collect(),
        ScaleType::E8m0 => bytes.iter().map(|byte| from_e8m0(*byte)).collect(),
    };
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(values),
        Some(at) => {
            let got = match kind {
                ScaleType::E8m0 => "byte 255, which is NaN".to_owned(),
                _ => values[at].to_string(),
            };
            Err(BadScale { at, got })
        }
    }
}

/// `2^(byte - 127)`; NaN for 255.
fn from_e8m0(byte: u8) -> f32 {
    match byte {
        // 2^-127 is a subnormal number of binary32.
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(byte) << 23),
    }
}

/// A binary16 number, exactly.
fn from_f16(bits: u16) -> f32 {
    let sign = u32::from(bits >> 15) << 31;
    let (exponent, mantissa) = (u32::from(bits >> 10) & 31, u32::from(bits) & 1023);
    match exponent {
        // A multiple of 2^-24: ten bits and a power of two are exact.
        #[expect(clippy::cast_precision_loss, reason = "ten bits fit")]
        0 => f32::from_bits((mantissa as f32 / 16_777_216.0).to_bits() | sign),
        31 => f32::from_bits(sign | 0x7f80_0000 | (mantissa << 13)),
        _ => f32::from_bits(sign | ((exponent + 112) << 23) | (mantissa << 13)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cv_09_exponent_bytes_are_powers_of_two_and_255_is_refused() {
        let values = decode(&[120, 127, 0, 1, 128, 254], ScaleType::E8m0).unwrap();
        let expected = [2f32.powi(-7), 1.0, 2f32.powi(-126) / 2.0, 2f32.powi(-126), 2.0, 2f32.powi(127)];
        assert_eq!(values, expected);
        assert_eq!(f64::from(values[2]), 2f64.powi(-127), "a subnormal number, not zero");
        let refusal = decode(&[120, 255], ScaleType::E8m0).unwrap_err();
        assert_eq!(refusal.at, 1);
        assert!(refusal.to_string().contains("255") && refusal.to_string().contains("NaN"), "{refusal}");
    }

    #[test]
    fn half_precision_scales_are_exact_for_every_bit_pattern() {
        for bits in 0..=u16::MAX {
            let bytes = bits.to_le_bytes();
            for (kind, expected) in
                [(ScaleType::Bf16, f32::from_bits(u32::from(bits) << 16)), (ScaleType::F16, reference_f16(bits))]
            {
                match decode(&bytes, kind) {
                    Ok(values) => assert_eq!(values[0].to_bits(), expected.to_bits(), "{bits:#x} {kind:?}"),
                    Err(refusal) => assert!(!expected.is_finite() && refusal.at == 0, "{bits:#x} {kind:?}"),
                }
            }
        }
    }

    /// Binary16 by its definition, in f64.
    fn reference_f16(bits: u16) -> f32 {
        let sign = if bits >> 15 == 0 { 1.0 } else { -1.0 };
        let (exponent, mantissa) = (i32::from(bits >> 10) & 31, f64::from(bits & 1023));
        let value = match exponent {
            0 => mantissa * 2f64.powi(-24),
            31 if mantissa == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            _ => (1024.0 + mantissa) * 2f64.powi(exponent - 25),
        };
        (sign * value) as f32
    }

    #[test]
    fn broken_scales_are_refused_with_their_place() {
        let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        assert_eq!(decode(&bytes(&[1.0, -0.0]), ScaleType::F32).unwrap(), [1.0, 0.0]);
        for (bad, text) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
            let refusal = decode(&bytes(&[1.0, 2.0, bad]), ScaleType::F32).unwrap_err();
            assert_eq!((refusal.at, refusal.got.as_str()), (2, text));
        }
        assert_eq!(decode(&[0; 7], ScaleType::F32).unwrap_err().at, 1);
        assert!(decode(&[], ScaleType::F16).unwrap().is_empty());
    }

    #[test]
    fn every_type_is_named_and_sized_like_its_element_type() {
        for kind in [ScaleType::F32, ScaleType::Bf16, ScaleType::F16, ScaleType::E8m0] {
            let dtype = Dtype::parse(kind.name()).unwrap();
            assert_eq!(ScaleType::of(dtype), Some(kind));
            assert_eq!(dtype.bits(), 8 * kind.bytes() as u64);
        }
        assert_eq!(ScaleType::of(Dtype::U8), None);
    }
}
