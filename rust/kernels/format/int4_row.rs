//! int4 codes, two per byte, one scale per row: `w = (nibble - 8) * scale`.

use super::{Format, FormatSpec, nibble};

pub(super) static SPEC: FormatSpec =
    FormatSpec { example: Format::Int4Row, name: "q4row", stamp: "int4-row", row_bytes: nibble::row_bytes };
