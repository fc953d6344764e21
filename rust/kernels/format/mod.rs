//! The storage formats of weight matrices.
//!
//! Owns: [`Format`], the [`FORMATS`] table with one file per format, encoding ([`encode()`]) and exact decoding
//! ([`decode_rows`]).
//! Must hold: `weight = code * scale`, rounded once to f32; float formats store the weight itself; layouts
//! are byte for byte those of the public containers (row-major, low nibble = even column, int4 codes
//! stored with an offset of 8), so nothing is repacked after a read.
//! Refuses: shapes whose sizes overflow, lengths that contradict the shape, non-finite weights.
//!
//! A new format is a variant, one file, one line in [`FORMATS`] and one arm in each of
//! `Format::spec`, `decode::part_body` and `encode::rows_body`.

mod bf16;
mod crumb;
pub(crate) mod decode;
pub(crate) mod encode;
mod f16;
mod f32;
mod fp8_block;
pub(crate) mod int2_row;
pub(crate) mod int3_g64;
mod int4_grouped;
mod int4_row;
mod int8_row;
pub(crate) mod nibble;
pub(crate) mod packing;
pub(crate) mod quantiser;
#[cfg(test)]
mod tests;

pub(crate) use decode::Row;
pub use decode::{decode_row, decode_rows};
pub use encode::{Deviation, encode, encode_measured, transcode};

use crate::matrix::check_shape;

/// How the elements of a matrix are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// IEEE binary32.
    F32,
    /// bfloat16: the upper half of a binary32.
    Bf16,
    /// IEEE binary16.
    F16,
    /// int8 codes, one f32 scale per row.
    Int8Row,
    /// int4 codes, one f32 scale per row.
    Int4Row,
    /// int4 codes, one f32 scale per `group` columns of a row.
    Int4Grouped {
        /// Columns that share a scale; the last group of a row may be shorter.
        group: u32,
    },
    /// float8 e4m3fn values, one f32 scale per block of 128 x 128.
    Fp8Block,
    /// int3 codes, one f32 scale per 64 columns of a row.
    Int3G64,
    /// int2 codes, one f32 scale per row.
    Int2Row,
}

/// Which columns of a row share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// No scales: the stored value is the weight.
    None,
    /// One scale per row.
    Row,
    /// One scale per this many columns.
    Columns(usize),
    /// One scale per block of this many rows and columns.
    Blocks {
        /// Rows that share a scale; the last block may be lower.
        rows: usize,
        /// Columns that share a scale; the last block may be narrower.
        cols: usize,
    },
}

/// How the scales of an int4 matrix are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleRule {
    /// The least squared error of several candidates, the absolute-maximum scale among them; a group
    /// that lies on an int4 grid is reproduced exactly. A zero group gets scale 0.
    Search,
    /// `max(max |w| / qmax, 1e-8)`, as the public containers have it.
    AbsMax,
}

impl ScaleRule {
    /// The command-line name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Search => "search",
            Self::AbsMax => "absmax",
        }
    }

    /// The rule with this command-line name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Search, Self::AbsMax].into_iter().find(|rule| rule.name() == name)
    }
}

/// What the table knows of a format.
pub struct FormatSpec {
    /// A value of the variant, used by everything that walks the table.
    pub example: Format,
    /// Command-line name of `example`.
    pub name: &'static str,
    /// Name in the container's stamp.
    pub stamp: &'static str,
    /// Bytes of one row of `cols` elements.
    row_bytes: fn(cols: usize) -> Option<usize>,
}

/// Every format, in the order of falling size.
pub static FORMATS: &[&FormatSpec] = &[
    &f32::SPEC,
    &bf16::SPEC,
    &f16::SPEC,
    &int8_row::SPEC,
    &fp8_block::SPEC,
    &int4_row::SPEC,
    &int4_grouped::SPEC,
    &int3_g64::SPEC,
    &int2_row::SPEC,
];

impl Format {
    /// int4 in groups of 64, the default for experts and dense matrices.
    pub const Q4G64: Format = Format::Int4Grouped { group: 64 };

    fn spec(self) -> &'static FormatSpec {
        match self {
            Self::F32 => &f32::SPEC,
            Self::Bf16 => &bf16::SPEC,
            Self::F16 => &f16::SPEC,
            Self::Int8Row => &int8_row::SPEC,
            Self::Int4Row => &int4_row::SPEC,
            Self::Int4Grouped { .. } => &int4_grouped::SPEC,
            Self::Fp8Block => &fp8_block::SPEC,
            Self::Int3G64 => &int3_g64::SPEC,
            Self::Int2Row => &int2_row::SPEC,
        }
    }

    /// The command-line name: `f32`, `bf16`, `f16`, `q8`, `fp8`, `q4row`, `q4g64` (`q4gN` for groups of N),
    /// `q3g64`, `q2row`.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Int4Grouped { group } => format!("{}{group}", int4_grouped::NAME_STEM),
            _ => self.spec().name.to_owned(),
        }
    }

    /// The name in a container's stamp; the group size is found from the number of scales.
    #[must_use]
    pub fn stamp(self) -> &'static str {
        self.spec().stamp
    }

    /// The format with this command-line name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Format> {
        if let Some(digits) = name.strip_prefix(int4_grouped::NAME_STEM) {
            let group = digits.parse().ok()?;
            let format = Format::Int4Grouped { group };
            // The comparison refuses signs and leading zeros.
            return (format.name() == name && check_shape(format, 1, 1).is_ok()).then_some(format);
        }
        FORMATS.iter().find(|spec| spec.name == name).map(|spec| spec.example)
    }

    /// Whether the weights are integer codes with scales.
    #[must_use]
    pub fn quantised(self) -> bool {
        matches!(self.grouping(), Grouping::Row | Grouping::Columns(_))
    }

    /// Whether the format has scales: integer codes and fp8.
    #[must_use]
    pub fn has_scales(self) -> bool {
        self.grouping() != Grouping::None
    }

    /// Which columns share a scale.
    #[must_use]
    pub fn grouping(self) -> Grouping {
        match self {
            Self::F32 | Self::Bf16 | Self::F16 => Grouping::None,
            Self::Int8Row | Self::Int4Row | Self::Int2Row => Grouping::Row,
            Self::Int4Grouped { group } => Grouping::Columns(group as usize),
            Self::Int3G64 => Grouping::Columns(int3_g64::GROUP),
            Self::Fp8Block => Grouping::Blocks { rows: fp8_block::SIDE, cols: fp8_block::SIDE },
        }
    }

    /// Columns per scale in a row of `cols` columns, at least 1.
    pub(crate) fn group_cols(self, cols: usize) -> usize {
        match self.grouping() {
            Grouping::None | Grouping::Row => cols.max(1),
            Grouping::Columns(group) => group.max(1),
            Grouping::Blocks { cols, .. } => cols.max(1),
        }
    }

    /// Bytes of the codes of a `[rows, cols]` matrix; `None` if the number overflows.
    #[must_use]
    pub fn code_bytes(self, rows: usize, cols: usize) -> Option<usize> {
        (self.spec().row_bytes)(cols)?.checked_mul(rows)
    }

    /// Number of f32 scales of a `[rows, cols]` matrix, 0 for float formats; `None` if it overflows.
    #[must_use]
    pub fn scale_count(self, rows: usize, cols: usize) -> Option<usize> {
        match self.grouping() {
            Grouping::None => Some(0),
            Grouping::Row => Some(rows),
            Grouping::Columns(group) => rows.checked_mul(cols.div_ceil(group.max(1))),
            Grouping::Blocks { rows: height, cols: width } => {
                rows.div_ceil(height.max(1)).checked_mul(cols.div_ceil(width.max(1)))
            }
        }
    }
}
