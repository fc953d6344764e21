//! The storage formats of weight matrices.
//!
//! Owns: [`Format`], the [`FORMATS`] table with one file per format, encoding and exact decoding.
//! Must hold: `weight = code * scale`, rounded once to f32; float formats store the weight itself; layouts
//! are byte for byte those of the public containers (row-major, low nibble = even column, int4 codes
//! stored with an offset of 8), so nothing is repacked after a read.
//! Refuses: shapes whose sizes overflow, lengths that contradict the shape, non-finite weights.
//!
//! A new format is a variant, one file, one line in [`FORMATS`] and one arm in `Format::spec`.

mod bf16;
mod f16;
mod f32;
mod int4_grouped;
mod int4_row;
mod int8_row;
pub(crate) mod nibble;
pub(crate) mod quantiser;
#[cfg(test)]
mod tests;

use crate::dispatch::KernelSet;
use crate::error::KernelError;
use crate::matrix::{MatrixView, check_shape};

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

/// One row of a matrix as the formats see it.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    pub(crate) codes: &'a [u8],
    pub(crate) scales: &'a [f32],
    pub(crate) group: usize,
}

/// One row to be encoded.
pub(crate) struct EncodeRow<'a> {
    pub(crate) kernels: KernelSet,
    pub(crate) rule: ScaleRule,
    pub(crate) group: usize,
    pub(crate) weights: &'a [f32],
    pub(crate) codes: &'a mut [u8],
    pub(crate) scales: &'a mut [f32],
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
    /// Encodes one row of finite weights.
    encode: fn(row: EncodeRow<'_>),
    /// Decodes `out.len()` elements from column `first` on.
    decode: fn(row: Row<'_>, first: usize, out: &mut [f32]),
}

/// Every format, in the order of falling size.
pub static FORMATS: &[&FormatSpec] =
    &[&f32::SPEC, &bf16::SPEC, &f16::SPEC, &int8_row::SPEC, &int4_row::SPEC, &int4_grouped::SPEC];

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
        }
    }

    /// The command-line name: `f32`, `bf16`, `f16`, `q8`, `q4row`, `q4g64` (`q4gN` for groups of N).
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
        self.grouping() != Grouping::None
    }

    /// Which columns share a scale.
    #[must_use]
    pub fn grouping(self) -> Grouping {
        match self {
            Self::F32 | Self::Bf16 | Self::F16 => Grouping::None,
            Self::Int8Row | Self::Int4Row => Grouping::Row,
            Self::Int4Grouped { group } => Grouping::Columns(group as usize),
        }
    }

    /// Columns per scale in a row of `cols` columns, at least 1.
    pub(crate) fn group_cols(self, cols: usize) -> usize {
        match self.grouping() {
            Grouping::None | Grouping::Row => cols.max(1),
            Grouping::Columns(group) => group.max(1),
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
        }
    }
}

/// Encodes `weights` `[rows, cols]`, row-major, into `codes` and `scales` of the lengths that
/// [`Format::code_bytes`] and [`Format::scale_count`] give.
///
/// int4 scales follow `rule`; int8 scales are always `max |w| / 127`; rounding is half-even. Under
/// [`ScaleRule::AbsMax`] codes and scales equal those of the public containers bit for bit.
///
/// # Errors
/// [`KernelError::Size`] or [`KernelError::Shape`] as [`MatrixView::new`],
/// [`KernelError::NonFiniteWeight`] for NaN or infinity in a quantised format.
pub fn encode(
    format: Format,
    rule: ScaleRule,
    rows: usize,
    cols: usize,
    weights: &[f32],
    codes: &mut [u8],
    scales: &mut [f32],
) -> Result<(), KernelError> {
    MatrixView::new(format, rows, cols, codes, scales)?;
    if rows.checked_mul(cols) != Some(weights.len()) {
        let (expected, got) = (rows.saturating_mul(cols), weights.len());
        let part = "weights";
        return Err(KernelError::Size { format: format.name(), rows, cols, part, expected, got });
    }
    let kernels = KernelSet::best();
    if format.quantised()
        && !kernels.all_finite(weights)
        && let Some(at) = weights.iter().position(|weight| !weight.is_finite())
    {
        return Err(KernelError::NonFiniteWeight { row: at / cols, col: at % cols });
    }
    if rows == 0 {
        return Ok(());
    }
    let (row_bytes, row_scales) = (codes.len() / rows, scales.len() / rows);
    for (row, weights) in weights.chunks_exact(cols).enumerate() {
        (format.spec().encode)(EncodeRow {
            kernels,
            rule,
            group: format.group_cols(cols),
            weights,
            codes: &mut codes[row * row_bytes..(row + 1) * row_bytes],
            scales: &mut scales[row * row_scales..(row + 1) * row_scales],
        });
    }
    Ok(())
}

/// Decodes one row: `code * scale` rounded once for quantised formats, the exact value for float formats.
///
/// # Panics
/// If `row` is not a row of `view` or `out` is longer than a row.
pub fn decode_row(view: &MatrixView<'_>, row: usize, out: &mut [f32]) {
    decode_part(view, row, 0, out);
}

/// Decodes `out.len()` elements of a row from column `first` on.
pub(crate) fn decode_part(view: &MatrixView<'_>, row: usize, first: usize, out: &mut [f32]) {
    let format = view.format();
    let group = format.group_cols(view.cols());
    let row = Row { codes: view.row_codes(row), scales: view.row_scales(row), group };
    (format.spec().decode)(row, first, out);
}
