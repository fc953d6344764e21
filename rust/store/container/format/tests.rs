use super::*;

fn counts(rows: u64, cols: u64, codes: u64, scales: u64) -> Counts<'static> {
    Counts { rows, cols, codes, scales, stamp: None }
}

fn decide(rows: u64, cols: u64, codes: u64, scales: u64, stamp: Option<&str>) -> Result<Format, Refusal> {
    Counts { rows, cols, codes, scales, stamp }.decide(None)
}

const Q4G64: Result<Format, Refusal> = Ok(Format::Int4Grouped { group: 64 });

#[test]
fn the_sizes_of_the_public_containers_are_read() {
    let (rows, cols) = (2048, 6144);
    assert_eq!(decide(rows, cols, 6_291_456, 2048 * 4, None), Ok(Format::Int4Row));
    assert_eq!(counts(rows, cols, 6_291_456, 196_608 * 4).decide(Some(64)), Q4G64);
    assert_eq!(decide(rows, cols, 12_582_912, 2048 * 4, None), Ok(Format::Int8Row));
    assert_eq!(decide(rows, cols, 4_718_592, 196_608 * 4, None), Ok(Format::Int3G64));
    assert_eq!(decide(rows, cols, 12_582_912, 16 * 48 * 4, None), Ok(Format::Fp8Block));
    assert_eq!(decide(rows, cols, 2048 * 1536, 2048 * 4, None), Ok(Format::Int2Row));
    // 48 * 128 block scales equal the row count: unstamped this is int8.
    assert_eq!(decide(6144, 16384, 6144 * 16384, 6144 * 4, None), Ok(Format::Int8Row));
    assert_eq!(decide(6144, 16384, 6144 * 16384, 6144 * 4, Some("fp8-e4m3-b128")), Ok(Format::Fp8Block));
}

#[test]
fn every_group_size_is_read_and_only_that_of_the_container() {
    for group in GROUPS {
        let found = counts(16, 768, 16 * 384, 16 * 768u64.div_ceil(u64::from(group)) * 4);
        assert!(found.is_int4_grouped() && found.fits_group(group));
        assert_eq!(found.decide(Some(group)), Ok(Format::Int4Grouped { group }));
        for other in GROUPS.into_iter().filter(|other| *other != group) {
            assert!(!found.fits_group(other));
            let refusal = found.decide(Some(other)).unwrap_err();
            assert_eq!(refusal.kind, FaultKind::Corrupt);
            assert!(refusal.expected.contains(&format!("int4-grouped by {other}")), "{refusal:?}");
        }
        assert!(found.decide(None).unwrap_err().expected.contains("group size"));
    }
}

#[test]
fn one_scale_in_a_row_is_no_group_unless_it_is_stamped() {
    let of = |stamp| Counts { rows: 8, cols: 64, codes: 256, scales: 32, stamp };
    assert!(!of(None).is_int4_grouped() && !of(Some("int4-row")).is_int4_grouped());
    assert!(of(Some("int4-grouped")).is_int4_grouped());
    assert_eq!(of(Some("int4-grouped")).decide(None), Ok(Format::Int4Row));
    assert_eq!(of(Some("int4-grouped")).decide(Some(64)), Q4G64);
    assert_eq!(of(None).decide(Some(64)), Ok(Format::Int4Row));
    assert!(of(Some("int4-grouped")).decide(Some(32)).is_err());
    // A single group of 512 columns is no group size that exists.
    let wide = Counts { rows: 8, cols: 512, codes: 2048, scales: 32, stamp: Some("int4-grouped") };
    assert_eq!(wide.decide(None).unwrap_err().kind, FaultKind::Corrupt);
    // More scales than rows in int8 or three bits are no groups of four bits.
    assert!(!counts(256, 512, 256 * 512, 8 * 4).is_int4_grouped());
    assert!(!counts(8, 128, 8 * 48, 8 * 2 * 4).is_int4_grouped());
}

#[test]
fn a_stamp_chooses_where_the_counts_leave_a_choice() {
    assert_eq!(decide(256, 1, 256, 256 * 4, None), Ok(Format::Int8Row));
    assert_eq!(decide(256, 1, 256, 256 * 4, Some("int4-row")), Ok(Format::Int4Row));
    // 24 columns in int8 are one group of three bits; 96 in int4 are two.
    assert_eq!(decide(8, 24, 192, 32, None), Ok(Format::Int8Row));
    assert_eq!(decide(8, 24, 192, 32, Some("int3-g64")), Ok(Format::Int3G64));
    assert_eq!(counts(8, 96, 8 * 48, 64).decide(Some(64)), Q4G64);
    assert_eq!(decide(8, 96, 8 * 48, 64, Some("int3-g64")), Ok(Format::Int3G64));
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
    assert!(counts(u64::MAX, u64::MAX, 128, 16).decide(Some(0)).is_err());
}

#[test]
fn contradicting_and_unknown_stamps_are_refused() {
    let refusal = decide(256, 64, 256 * 32, 256 * 4, Some("int8-row")).unwrap_err();
    assert_eq!(refusal.kind, FaultKind::Corrupt);
    assert!(refusal.expected.contains("16,384 + 1,024 (int8-row)"), "{refusal:?}");
    let known = ["int8-row", "int4-row", "int4-grouped", "int2-row", "int3-g64", "fp8-e4m3-b128", "e8-iq3-lattice"];
    for stamp in known.into_iter().filter(|stamp| !stamp.starts_with("int4")) {
        assert_eq!(decide(256, 64, 256 * 32, 256 * 4, Some(stamp)).unwrap_err().kind, FaultKind::Corrupt, "{stamp}");
    }
    assert_eq!(decide(256, 64, 256 * 32, 256 * 4, Some("f32")).unwrap_err().kind, FaultKind::Corrupt);
    assert_eq!(decide(256, 64, 256 * 32, 256 * 4, Some("int5")).unwrap_err().kind, FaultKind::Unsupported);
}

#[test]
fn known_formats_that_cannot_be_read_are_refused_by_their_names() {
    let cases = [
        (Some("int4-rans256-g0"), 12_345, 256 * 4, "int4-rans256-g0"),
        (None, 256 * 98, 4, "e8-iq3-lattice"),
        (Some("e8-iq3-lattice"), 256 * 98, 4, "e8-iq3-lattice"),
    ];
    for (stamp, codes, scales, name) in cases {
        let refusal = decide(256, 64, codes, scales, stamp).unwrap_err();
        assert_eq!(refusal.kind, FaultKind::Unsupported);
        assert!(refusal.got.contains(name), "{refusal:?}");
    }
    // 98 columns: the lattice and int8 in a single row look alike, so that only a stamp is believed.
    assert_eq!(decide(1, 98, 98, 4, None).unwrap_err().kind, FaultKind::Unsupported);
    assert_eq!(decide(1, 98, 98, 4, Some("int8-row")), Ok(Format::Int8Row));
    let refusal = counts(256, 300, 256 * 300, 2 * 3).e8m0_refusal().unwrap();
    assert!(refusal.kind == FaultKind::Unsupported && refusal.got.contains("UE8M0"), "{refusal:?}");
    assert_eq!(counts(256, 300, 256 * 300, 7).e8m0_refusal(), None);
}
