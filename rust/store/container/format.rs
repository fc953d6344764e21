//! Which quantised format the byte counts of a weight mean.
//!
//! The public containers store a quantised matrix as flat bytes with its scales in a tensor of the same name plus `.qs`;
//! neither says rows, columns or format. For known rows and columns the two byte counts decide, in the order of
//! [`candidates`], and a stamp (the `colibri.fmt` entry) chooses where they leave a choice; a stamp that contradicts them
//! is refused. Nothing says the group size of an int4 matrix either: it is one for the whole container and is found from
//! all of its matrices together ([`crate::catalog::GroupSize`]). There is no "otherwise": a count that fits no format is an
//! error, and formats that are known and not read are refused by their names.

use colibri_kernels::format::Format;

use crate::error::{FaultKind, grouped, shown};

/// The group sizes that occur in public containers.
pub const GROUPS: [u32; 8] = [16, 32, 48, 64, 96, 128, 192, 256];

/// The stamp of int4 codes packed by an entropy coder, whose sizes follow from the data. Nothing computes with it.
pub const RANS_STAMP: &str = "int4-rans256-g0";

/// The metadata key of that format's table; a file that has it holds such tensors.
pub const RANS_KEY: &str = "colibri.int4-rans256-g0.table";

/// What fp8 codes with one-byte scales are called in messages; they have no stamp.
const FP8_E8M0: &str = "fp8-e4m3-b128 with one-byte (UE8M0) scales";

/// Stamps of weights that are not quantised.
const FLOAT_STAMPS: [&str; 3] = ["f32", "bf16", "f16"];

/// Bytes of a scale in a public container: f32.
const SCALE_BYTES: u64 = 4;

/// The byte counts of a matrix, and its stamp if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts<'a> {
    /// Rows (outputs).
    pub rows: u64,
    /// Columns (inputs).
    pub cols: u64,
    /// Bytes of the codes.
    pub codes: u64,
    /// Bytes of the scales.
    pub scales: u64,
    /// The stamp.
    pub stamp: Option<&'a str>,
}

/// What one format needs for a matrix of known size.
struct Candidate {
    stamp: &'static str,
    codes: u64,
    scales: u64,
    /// `None` for a format that is known by name and cannot be read.
    format: Option<Format>,
}

/// Why the byte counts were refused.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Corrupt or unsupported.
    pub kind: FaultKind,
    /// What would have been right.
    pub expected: String,
    /// What was found.
    pub got: String,
}

impl Counts<'_> {
    /// The format of the matrix in a container whose int4 groups have `group` columns.
    ///
    /// # Errors
    /// Counts that fit no format, a stamp that contradicts them, or a format that cannot be read.
    pub fn decide(&self, group: Option<u32>) -> Result<Format, Refusal> {
        let (rows, cols) = (self.rows, self.cols);
        let got = self.shown();
        if self.stamp == Some(RANS_STAMP) {
            return Err(unreadable(RANS_STAMP));
        }
        if group.is_none()
            && self.is_int4_grouped()
            && self.scales > rows.saturating_mul(SCALE_BYTES)
            && GROUPS.iter().any(|group| self.fits_group(*group))
        {
            let expected = "a group size that fits every int4 matrix of the container".to_owned();
            return Err(Refusal { kind: FaultKind::Corrupt, expected, got });
        }
        let known = candidates(self, group);
        if let Some(stamp) = self.stamp
            && !FLOAT_STAMPS.contains(&stamp)
            && !known.iter().any(|candidate| candidate.stamp == stamp)
        {
            let expected = format!("a known format for [{rows}, {cols}]");
            return Err(Refusal { kind: FaultKind::Unsupported, expected, got });
        }
        let wanted = |candidate: &&Candidate| self.stamp.is_none_or(|stamp| stamp == candidate.stamp);
        let fits = |candidate: &&Candidate| candidate.codes == self.codes && candidate.scales == self.scales;
        match known.iter().filter(wanted).find(fits) {
            Some(Candidate { format: Some(format), .. }) => Ok(*format),
            Some(candidate) => Err(unreadable(candidate.stamp)),
            None => {
                let readable: Vec<String> = known
                    .iter()
                    .filter(wanted)
                    .filter(|candidate| candidate.format.is_some())
                    .map(|candidate| {
                        format!("{} + {} ({})", grouped(candidate.codes), grouped(candidate.scales), candidate.name())
                    })
                    .collect();
                let list = if readable.is_empty() { "another size".to_owned() } else { readable.join(" or ") };
                let expected = format!("bytes of codes + scales for [{rows}, {cols}]: {list}");
                Err(Refusal { kind: FaultKind::Corrupt, expected, got })
            }
        }
    }

    /// The counts for a message.
    fn shown(&self) -> String {
        let counts = format!("{} + {} bytes", grouped(self.codes), grouped(self.scales));
        match self.stamp {
            Some(stamp) => format!("{counts} stamped {}", shown(stamp)),
            None => counts,
        }
    }

    /// Whether the number of scales says int4 in groups, of whatever size: more than one scale for a row, or a stamp that
    /// says so.
    pub fn is_int4_grouped(&self) -> bool {
        let stamp = Format::Q4G64.stamp();
        let per_row = self.rows.checked_mul(SCALE_BYTES);
        let per_group = per_row.is_some_and(|bytes| match self.stamp {
            Some(found) => found == stamp && self.scales >= bytes,
            None => self.scales > bytes,
        });
        let codes = self.rows.checked_mul(self.cols.div_ceil(2));
        per_group
            && codes == Some(self.codes)
            // What comes earlier in the order is something else.
            && !candidates(self, None)
                .iter()
                .take_while(|candidate| candidate.stamp != stamp)
                .any(|earlier| self.stamp.is_none() && earlier.codes == self.codes && earlier.scales == self.scales)
    }

    /// Whether the number of scales is that of groups of `group` columns.
    pub fn fits_group(&self, group: u32) -> bool {
        let groups = self.cols.div_ceil(u64::from(group.max(1)));
        let scales = self.rows.checked_mul(groups).and_then(|count| count.checked_mul(SCALE_BYTES));
        scales == Some(self.scales)
    }

    /// The refusal of one-byte block scales, when the counts are theirs: `scales` counts blocks.
    pub fn e8m0_refusal(&self) -> Option<Refusal> {
        let blocks = self.rows.div_ceil(128).checked_mul(self.cols.div_ceil(128));
        let is = self.rows.checked_mul(self.cols) == Some(self.codes) && blocks == Some(self.scales);
        is.then(|| unreadable(FP8_E8M0))
    }
}

impl Candidate {
    /// The stamp, with what it leaves open.
    fn name(&self) -> String {
        match self.format {
            Some(Format::Int4Grouped { group }) => format!("{} by {group}", self.stamp),
            _ => self.stamp.to_owned(),
        }
    }
}

/// The refusal of a format that is known by its name.
pub fn unreadable(name: &str) -> Refusal {
    Refusal {
        kind: FaultKind::Unsupported,
        expected: "int8-row, int4-row, int4-grouped, int3-g64, int2-row or fp8-e4m3-b128".to_owned(),
        got: format!("{name}, which is not supported"),
    }
}

/// Every format's needs for a matrix, in the order in which unstamped counts are read. A format whose needs overflow 64
/// bits is left out.
fn candidates(counts: &Counts<'_>, group: Option<u32>) -> Vec<Candidate> {
    let (rows, cols) = (counts.rows, counts.cols);
    let mut known = Vec::with_capacity(8);
    let mut add = |stamp, codes: Option<u64>, scales: Option<u64>, format| {
        if let (Some(codes @ 1..), Some(scales)) = (codes, scales) {
            known.push(Candidate { stamp, codes, scales, format });
        }
    };
    let floats = |count: u64| count.checked_mul(SCALE_BYTES);
    let per_row = |count: u64| rows.checked_mul(count);
    let (row_scales, bytes) = (floats(rows), per_row(cols));
    let blocks = rows.div_ceil(128).checked_mul(cols.div_ceil(128));
    add("e8-iq3-lattice", per_row(cols.div_ceil(256)).and_then(|blocks| blocks.checked_mul(98)), floats(1), None);
    add(Format::Int8Row.stamp(), bytes, row_scales, Some(Format::Int8Row));
    add(Format::Fp8Block.stamp(), bytes, blocks.and_then(floats), Some(Format::Fp8Block));
    let nibbles = per_row(cols.div_ceil(2));
    add(Format::Int4Row.stamp(), nibbles, row_scales, Some(Format::Int4Row));
    let (groups, format) = match group {
        Some(group) => (per_row(cols.div_ceil(u64::from(group.max(1)))), Format::Int4Grouped { group }),
        // No matrix has several groups: a stamped one has a single group in each row.
        None if counts.stamp.is_some() && cols <= u64::from(GROUPS[GROUPS.len() - 1]) => (Some(rows), Format::Int4Row),
        None => (per_row(cols.div_ceil(64)), Format::Q4G64),
    };
    add(Format::Q4G64.stamp(), nibbles, groups.and_then(floats), Some(format));
    add(Format::Int2Row.stamp(), per_row(cols.div_ceil(4)), row_scales, Some(Format::Int2Row));
    let thirds = per_row(cols.div_ceil(64));
    let planes = thirds.and_then(|groups| groups.checked_mul(24));
    add(Format::Int3G64.stamp(), planes, thirds.and_then(floats), Some(Format::Int3G64));
    known
}

#[cfg(test)]
mod tests;
