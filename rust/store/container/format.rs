//! Which quantised format the byte counts of a weight mean.
//!
//! The public containers store a quantised matrix as flat bytes with its scales in a tensor of the same name plus `.qs`;
//! neither says rows, columns or format. For known rows and columns the two byte counts decide, and a stamp (the
//! `colibri.fmt` entry) chooses where they leave a choice; a stamp that contradicts them is refused. There is no
//! "otherwise": a count that fits no format is an error.

use colibri_kernels::format::Format;

use crate::error::{FaultKind, grouped, shown};

/// The group sizes that are recognised, the common one first: where several fit, it is meant.
const GROUPS: [u32; 8] = [64, 16, 32, 48, 96, 128, 192, 256];

/// Stamps of weights that are not quantised.
const FLOAT_STAMPS: [&str; 3] = ["f32", "bf16", "f16"];

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

/// The format of a matrix [rows, cols] with `codes` bytes of codes and `scales` bytes of scales.
///
/// # Errors
/// Counts that fit no format, a stamp that contradicts them, or a format that cannot be read.
pub fn decide(rows: u64, cols: u64, codes: u64, scales: u64, stamp: Option<&str>) -> Result<Format, Refusal> {
    let got = match stamp {
        Some(stamp) => format!("{} + {} bytes stamped {}", grouped(codes), grouped(scales), shown(stamp)),
        None => format!("{} + {} bytes", grouped(codes), grouped(scales)),
    };
    let known = candidates(rows, cols);
    if let Some(stamp) = stamp
        && !FLOAT_STAMPS.contains(&stamp)
        && !known.iter().any(|candidate| candidate.stamp == stamp)
    {
        let expected = format!("a known format for [{rows}, {cols}]");
        return Err(Refusal { kind: FaultKind::Unsupported, expected, got });
    }
    let wanted = |candidate: &&Candidate| stamp.is_none_or(|stamp| stamp == candidate.stamp);
    match known.iter().filter(wanted).find(|candidate| candidate.codes == codes && candidate.scales == scales) {
        Some(Candidate { format: Some(format), .. }) => Ok(*format),
        Some(candidate) => Err(Refusal {
            kind: FaultKind::Unsupported,
            expected: "int8-row, int4-row or int4-grouped".to_owned(),
            got: format!("{}, which is not supported yet", candidate.stamp),
        }),
        None => {
            let readable: Vec<String> = known
                .iter()
                .filter(wanted)
                .filter(|candidate| match candidate.format {
                    // One group size stands for all in a message.
                    Some(Format::Int4Grouped { group }) => group == GROUPS[0],
                    other => other.is_some(),
                })
                .map(|candidate| {
                    format!("{} + {} ({})", grouped(candidate.codes), grouped(candidate.scales), candidate.stamp)
                })
                .collect();
            let list = if readable.is_empty() { "another size".to_owned() } else { readable.join(" or ") };
            let expected = format!("bytes of codes + scales for [{rows}, {cols}]: {list}");
            Err(Refusal { kind: FaultKind::Corrupt, expected, got })
        }
    }
}

/// Every format's needs for a matrix [rows, cols], in the order in which unstamped counts are read. A format whose needs
/// overflow 64 bits is left out.
fn candidates(rows: u64, cols: u64) -> Vec<Candidate> {
    let mut known = Vec::with_capacity(6 + GROUPS.len());
    let mut add = |stamp, codes: Option<u64>, scale_count: Option<u64>, format| {
        let scales = scale_count.and_then(|count| count.checked_mul(4));
        if let (Some(codes @ 1..), Some(scales)) = (codes, scales) {
            known.push(Candidate { stamp, codes, scales, format });
        }
    };
    let per_row = |count: u64| rows.checked_mul(count);
    add("e8-iq3-lattice", per_row(cols.div_ceil(256)).and_then(|blocks| blocks.checked_mul(98)), Some(1), None);
    add("int8-row", per_row(cols), Some(rows), Some(Format::Int8Row));
    let blocks = rows.div_ceil(128).checked_mul(cols.div_ceil(128));
    add("fp8-e4m3-b128", per_row(cols), blocks, None);
    add("int4-row", per_row(cols.div_ceil(2)), Some(rows), Some(Format::Int4Row));
    for group in GROUPS {
        let groups = per_row(cols.div_ceil(u64::from(group)));
        add("int4-grouped", per_row(cols.div_ceil(2)), groups, Some(Format::Int4Grouped { group }));
    }
    add("int2-row", per_row(cols.div_ceil(4)), Some(rows), None);
    let thirds = cols.div_ceil(64);
    add("int3-g64", per_row(thirds).and_then(|groups| groups.checked_mul(24)), per_row(thirds), None);
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_of_the_public_containers_are_read() {
        let expert = (2048, 6144);
        assert_eq!(decide(expert.0, expert.1, 6_291_456, 2048 * 4, None), Ok(Format::Int4Row));
        assert_eq!(decide(expert.0, expert.1, 6_291_456, 196_608 * 4, None), Ok(Format::Int4Grouped { group: 64 }));
        assert_eq!(decide(expert.0, expert.1, 12_582_912, 2048 * 4, None), Ok(Format::Int8Row));
        // 48 * 128 block scales equal the row count: unstamped this is int8.
        assert_eq!(decide(6144, 16384, 6144 * 16384, 6144 * 4, None), Ok(Format::Int8Row));
        for group in GROUPS {
            let scales = 16 * 768u64.div_ceil(u64::from(group)) * 4;
            assert_eq!(decide(16, 768, 16 * 384, scales, None), Ok(Format::Int4Grouped { group }));
        }
    }

    #[test]
    fn a_stamp_chooses_where_the_counts_leave_a_choice() {
        // 64 columns: one group of 64 per row looks like one scale per row.
        assert_eq!(decide(256, 64, 256 * 32, 256 * 4, None), Ok(Format::Int4Row));
        assert_eq!(decide(256, 64, 256 * 32, 256 * 4, Some("int4-grouped")), Ok(Format::Int4Grouped { group: 64 }));
        assert_eq!(decide(256, 1, 256, 256 * 4, None), Ok(Format::Int8Row));
        assert_eq!(decide(256, 1, 256, 256 * 4, Some("int4-row")), Ok(Format::Int4Row));
        // 96 columns, two groups: of 64, not of 48.
        assert_eq!(decide(8, 96, 8 * 48, 8 * 2 * 4, None), Ok(Format::Int4Grouped { group: 64 }));
    }

    #[test]
    fn se_03_counts_that_fit_no_format_are_refused_with_both_numbers() {
        for codes in [127, 129, 0] {
            let refusal = decide(4, 64, codes, 16, None).unwrap_err();
            assert_eq!(refusal.kind, FaultKind::Corrupt);
            assert!(refusal.expected.contains("128 + 16"), "{refusal:?}");
            assert!(refusal.got.contains(&format!("{codes} + 16")), "{refusal:?}");
        }
        for scales in [15, 17, 0] {
            let refusal = decide(4, 64, 128, scales, None).unwrap_err();
            assert!(refusal.got.contains(&format!("128 + {scales}")), "{refusal:?}");
        }
        assert!(decide(0, 64, 0, 0, None).is_err());
        assert!(decide(u64::MAX, u64::MAX, 128, 16, None).is_err());
    }

    #[test]
    fn contradicting_and_unknown_stamps_are_refused() {
        let refusal = decide(256, 64, 256 * 32, 256 * 4, Some("int8-row")).unwrap_err();
        assert_eq!(refusal.kind, FaultKind::Corrupt);
        assert!(refusal.expected.contains("16,384 + 1,024 (int8-row)"), "{refusal:?}");
        assert_eq!(decide(256, 64, 256 * 32, 256 * 4, Some("f32")).unwrap_err().kind, FaultKind::Corrupt);
        assert_eq!(decide(256, 64, 256 * 32, 256 * 4, Some("int5")).unwrap_err().kind, FaultKind::Unsupported);
    }

    #[test]
    fn known_formats_that_cannot_be_read_are_named() {
        let cases = [
            ("int2-row", 256 * 16u64, 256 * 4u64),
            ("int3-g64", 256 * 24, 256 * 4),
            ("fp8-e4m3-b128", 256 * 64, 2 * 4),
            ("e8-iq3-lattice", 256 * 98, 4),
        ];
        for (name, codes, scales) in cases {
            let refusal = decide(256, 64, codes, scales, None).unwrap_err();
            assert_eq!(refusal.kind, FaultKind::Unsupported);
            assert!(refusal.got.contains(name), "{refusal:?}");
        }
    }
}
