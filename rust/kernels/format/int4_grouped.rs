//! int4 codes, two per byte, one scale per group of columns: `w = (nibble - 8) * scale[row, col / group]`.
//!
//! Scales are `[rows, ceil(cols / group)]`; the nibbles are laid out as without groups.

use super::{Format, FormatSpec, nibble};

/// Start of the command-line name; the group size follows.
pub(super) const NAME_STEM: &str = "q4g";

pub(super) static SPEC: FormatSpec =
    FormatSpec { example: Format::Q4G64, name: "q4g64", stamp: "int4-grouped", row_bytes: nibble::row_bytes };
