//! Public containers and FP8 checkpoints: what their byte counts, types and stamps mean, and what is refused.

use colibri_kernels::Format;
use colibri_store::{Catalog, GroupSize, ScaleType, Span, StoreError};

use crate::weights::{Described, model, weight, write_shard};
use crate::{Folder, assert_says, refusal};

/// A flat tensor of bytes and its scales.
fn quantised<'a>(name: &'a str, scales: &'a str, shapes: &'a [[u64; 1]; 2]) -> [Described<'a>; 2] {
    let [codes, count] = shapes;
    [(name, "U8", codes, codes[0] as usize), (scales, "F32", count, 4 * count[0] as usize)]
}

/// A container of int4 matrices (rows, columns, scales of a row), named `m0`, `m1`, ...
fn int4(matrices: &[(u64, u64, u64)], stamped: bool) -> (Folder, Vec<(String, usize, usize)>) {
    let names: Vec<(String, String)> = (0..matrices.len()).map(|i| (format!("m{i}"), format!("m{i}.qs"))).collect();
    let shapes: Vec<[[u64; 1]; 2]> =
        matrices.iter().map(|(rows, cols, scales)| [[rows * cols.div_ceil(2)], [rows * scales]]).collect();
    let tensors: Vec<Described<'_>> =
        names.iter().zip(&shapes).flat_map(|((name, scales), shapes)| quantised(name, scales, shapes)).collect();
    let stamps: Vec<String> = names.iter().map(|(name, _)| format!(r#""{name}":"int4-grouped""#)).collect();
    let stamps = format!("{{{}}}", stamps.join(","));
    let metadata: &[(&str, &str)] = if stamped { &[("colibri.fmt", &stamps)] } else { &[] };
    let folder = model(metadata, &tensors);
    let listed = names.iter().zip(matrices);
    (folder, listed.map(|((name, _), (rows, cols, _))| (name.clone(), *rows as usize, *cols as usize)).collect())
}

fn group_of(catalog: &Catalog, matrices: &[(String, usize, usize)]) -> Result<GroupSize, StoreError> {
    catalog.group_size(matrices.iter().map(|(name, rows, cols)| (name.as_str(), *rows, *cols)))
}

#[test]
fn every_group_size_is_found_from_all_matrices_together() {
    for group in [16u64, 32, 48, 64, 96, 128, 192, 256] {
        // The second has one group in each row where groups are wide; the first alone is never ambiguous.
        let matrices = [(4, 1536, 1536 / group), (4, 100, 100u64.div_ceil(group)), (4, 16, 1)];
        let (folder, listed) = int4(&matrices, false);
        let catalog = folder.open().unwrap();
        let found = group_of(&catalog, &listed).unwrap();
        assert_eq!(found.columns(), Some(group as u32));
        let wanted = Format::Int4Grouped { group: group as u32 };
        assert_eq!(catalog.weight("m0", 4, 1536, found).unwrap().format, wanted);
        let second = catalog.weight("m1", 4, 100, found).unwrap().format;
        assert_eq!(second, if group < 100 { wanted } else { Format::Int4Row });
        assert_eq!(catalog.weight("m2", 4, 16, found).unwrap().format, Format::Int4Row);
    }
    // No matrix in groups: no size.
    let (folder, listed) = int4(&[(4, 100, 1), (8, 64, 1)], false);
    assert_eq!(group_of(&folder.open().unwrap(), &listed).unwrap(), GroupSize::NONE);
}

#[test]
fn two_ambiguous_matrices_decide_together_and_one_alone_does_not() {
    // 96 columns in 2 groups: 48 or 64. 128 in 2: 64 or 96. 144 in 3: 48 or 64.
    let (folder, listed) = int4(&[(4, 96, 2), (4, 128, 2), (4, 144, 3)], false);
    let catalog = folder.open().unwrap();
    assert_eq!(group_of(&catalog, &listed).unwrap().columns(), Some(64));
    for (alone, names) in [(0, ["48", "64"]), (1, ["64", "96"]), (2, ["48", "64"])] {
        let (code, text) = refusal(&group_of(&catalog, &listed[alone..=alone]).unwrap_err());
        assert_eq!(code, "model_unsupported");
        assert_says(&text, &[&format!("`m{alone}`"), "model.safetensors", "several", &names.join(", "), "convert"]);
    }
    // A stamp says that there are groups, not how wide they are; one group of 64 columns is 64 or wider.
    let (folder, listed) = int4(&[(4, 96, 2)], true);
    assert_eq!(group_of(&folder.open().unwrap(), &listed).unwrap_err().code(), "model_unsupported");
    let (folder, listed) = int4(&[(4, 96, 2), (4, 64, 1)], true);
    let catalog = folder.open().unwrap();
    let group = group_of(&catalog, &listed).unwrap();
    assert_eq!(catalog.weight("m1", 4, 64, group).unwrap().format, Format::Int4Grouped { group: 64 });
}

#[test]
fn matrices_of_different_group_sizes_are_both_named() {
    let (folder, listed) = int4(&[(4, 96, 2), (4, 1536, 48), (4, 1536, 24)], false);
    let catalog = folder.open().unwrap();
    let (code, text) = refusal(&group_of(&catalog, &listed).unwrap_err());
    assert_eq!(code, "model_corrupt");
    assert_says(&text, &["`m1`", "`m2`", "groups of 32", "groups of 64", "model.safetensors"]);
    let (folder, listed) = int4(&[(4, 1536, 24), (4, 256, 1)], true);
    let catalog = folder.open().unwrap();
    let (code, text) = refusal(&group_of(&catalog, &listed).unwrap_err());
    assert_eq!(code, "model_corrupt");
    assert_says(&text, &["`m0`", "`m1`"]);
    // A count that fits no size at all is not asked about sizes: the weight itself is refused.
    let (folder, listed) = int4(&[(4, 1536, 24), (4, 1536, 25)], false);
    let catalog = folder.open().unwrap();
    let group = group_of(&catalog, &listed).unwrap();
    assert_eq!(group.columns(), Some(64));
    let (code, text) = refusal(&catalog.weight("m1", 4, 1536, group).unwrap_err());
    assert_eq!(code, "model_corrupt");
    assert_says(&text, &["`m1`", "3,072 + 400 bytes", "3,072 + 384 (int4-grouped by 64)"]);
}

#[test]
fn a_manifest_says_the_group_size() {
    let (folder, listed) = int4(&[(4, 96, 2)], true);
    let bytes = std::fs::metadata(folder.path().join("model.safetensors")).unwrap().len();
    let write = |format: &str| {
        let manifest = format!(
            r#"{{"format":"colibri","format_version":1,"writer":"colibri","source":{{"name":"m","model_type":"t","bytes":1}},
               "quantisation":[{{"class":"experts","format":"{format}"}},{{"class":"dense","format":"q8"}}],
               "scale_rule":"search","multi_token_prediction":false,"files":[],
               "shards":[{{"file":"model.safetensors","bytes":{bytes},"sha256":""}}]}}"#
        );
        folder.write("colibri.json", manifest.as_bytes());
    };
    for group in [48, 64] {
        write(&format!("q4g{group}"));
        let catalog = folder.open().unwrap();
        let found = group_of(&catalog, &listed).unwrap();
        assert_eq!(catalog.weight("m0", 4, 96, found).unwrap().format, Format::Int4Grouped { group });
    }
    write("q4g32");
    let catalog = folder.open().unwrap();
    let found = group_of(&catalog, &listed).unwrap();
    assert_eq!(catalog.weight("m0", 4, 96, found).unwrap_err().code(), "model_corrupt");
}

#[test]
fn every_public_format_is_read_unstamped_and_stamped() {
    let cases = [
        (Format::Int8Row, "int8-row", 200 * 300, 200),
        (Format::Int4Row, "int4-row", 200 * 150, 200),
        (Format::Int4Grouped { group: 64 }, "int4-grouped", 200 * 150, 200 * 5),
        (Format::Int2Row, "int2-row", 200 * 75, 200),
        (Format::Int3G64, "int3-g64", 200 * 5 * 24, 200 * 5),
        (Format::Fp8Block, "fp8-e4m3-b128", 200 * 300, 2 * 3),
    ];
    for (format, stamp, codes, scales) in cases {
        let of = |stamp: Option<&str>| {
            let stamps = stamp.map(|stamp| format!(r#"{{"w":"{stamp}"}}"#));
            let metadata = stamps.as_deref().map(|stamps| ("colibri.fmt", stamps));
            model(metadata.as_slice(), &quantised("w", "w.qs", &[[codes], [scales]]))
        };
        assert_eq!(weight(&of(None), 200, 300).unwrap(), format);
        assert_eq!(weight(&of(Some(stamp)), 200, 300).unwrap(), format);
        for (_, other, ..) in cases.iter().filter(|case| case.1 != stamp) {
            let (code, text) = refusal(&weight(&of(Some(other)), 200, 300).unwrap_err());
            assert_eq!(code, "model_corrupt", "{stamp} stamped {other}");
            assert_says(&text, &["`w`", "model.safetensors", &format!("stamped `{other}`")]);
        }
    }
}

#[test]
fn formats_that_nothing_reads_are_refused_by_their_names() {
    let lattice = model(&[], &quantised("w", "w.qs", &[[8 * 2 * 98], [1]]));
    let packed = [("colibri.int4-rans256-g0.table", "0,1,2")];
    let rans = model(&packed, &quantised("w", "w.qs", &[[777], [8]]));
    let bare = model(&packed, &[("w", "U8", &[777], 777)]);
    let stamped = model(&[("colibri.fmt", r#"{"w":"int4-rans256-g0"}"#)], &quantised("w", "w.qs", &[[777], [8]]));
    let exponents = model(&[], &[("w", "U8", &[8 * 512], 8 * 512), ("w.qs", "U8", &[4], 4)]);
    let typed = model(&[], &[("w", "U8", &[8 * 512], 8 * 512), ("w.qs", "F8_E8M0", &[1, 4], 4)]);
    let cases = [
        (lattice, "e8-iq3-lattice"),
        (rans, "int4-rans256-g0"),
        (bare, "int4-rans256-g0"),
        (stamped, "int4-rans256-g0"),
        (exponents, "UE8M0"),
        (typed, "UE8M0"),
    ];
    for (folder, name) in cases {
        let (code, text) = refusal(&weight(&folder, 8, 512).unwrap_err());
        assert_eq!(code, "model_unsupported", "{name}");
        assert_says(&text, &["`w`", "model.safetensors", name]);
    }
    // The other tensors of such a file are what they are.
    let beside = model(&packed, &quantised("w", "w.qs", &[[8 * 512], [8]]));
    assert_eq!(weight(&beside, 8, 512).unwrap(), Format::Int8Row);
    // Scales of one byte on another grid are no known format.
    let odd = model(&[], &[("w", "U8", &[8 * 512], 8 * 512), ("w.qs", "U8", &[5], 5)]);
    let (code, text) = refusal(&weight(&odd, 8, 512).unwrap_err());
    assert_eq!(code, "model_corrupt");
    assert_says(&text, &["scales of type F32", "U8"]);
}

/// An FP8 matrix [200, 300] of a checkpoint with these scales beside it.
fn fp8(scales: &[Described<'_>]) -> Folder {
    let mut tensors = vec![("w", "F8_E4M3", &[200u64, 300][..], 60_000)];
    tensors.extend_from_slice(scales);
    model(&[], &tensors)
}

#[test]
fn fp8_is_what_the_type_and_the_block_scales_say() {
    for (dtype, bytes, scale_type) in [
        ("F32", 24, ScaleType::F32),
        ("BF16", 12, ScaleType::Bf16),
        ("F16", 12, ScaleType::F16),
        ("F8_E8M0", 6, ScaleType::E8m0),
    ] {
        let catalog = fp8(&[("w_scale_inv", dtype, &[2, 3], bytes)]).open().unwrap();
        let found = catalog.weight("w", 200, 300, GroupSize::NONE).unwrap();
        assert_eq!((found.format, found.rows, found.cols), (Format::Fp8Block, 200, 300));
        assert_eq!(
            (found.codes.bytes, found.scales.unwrap().bytes, found.scale_type),
            (60_000, bytes as u64, scale_type)
        );
        assert!(catalog.check_scales().is_ok());
    }
    let transposed: Described<'_> = ("w_scale_inv", "F32", &[3, 2], 24);
    let cases: [(&[Described<'_>], &str, &[&str]); 8] = [
        (&[], "model_incomplete", &["`w_scale_inv`", "no such tensor"]),
        (&[transposed], "model_corrupt", &["[2, 3] block scales", "200 x 300", "F32 [3, 2]"]),
        (&[("w_scale_inv", "F32", &[1, 3], 12)], "model_corrupt", &["[2, 3] block scales", "[1, 3]"]),
        (&[("w_scale_inv", "F32", &[6], 24)], "model_corrupt", &["[2, 3] block scales", "[6]"]),
        (&[("w_scale_inv", "F32", &[], 4)], "model_corrupt", &["[2, 3] block scales", "[]"]),
        (&[("w_scale_inv", "U8", &[2, 3], 6)], "model_unsupported", &["`w_scale_inv`", "F8_E8M0", "U8"]),
        (&[("w.qs", "F32", &[2, 3], 24)], "model_corrupt", &["no .qs scales beside F8_E4M3"]),
        (&[("w_scale", "F32", &[1], 4)], "model_incomplete", &["`w_scale_inv`"]),
    ];
    for (scales, wanted, parts) in cases {
        let (code, text) = refusal(&weight(&fp8(scales), 200, 300).unwrap_err());
        assert_eq!(code, wanted, "{text}");
        assert_says(&text, &["`w`", "model.safetensors"]);
        assert_says(&text, parts);
    }
    let good = fp8(&[("w_scale_inv", "F32", &[2, 3], 24)]);
    assert_says(&refusal(&weight(&good, 300, 200).unwrap_err()).1, &["shape [300, 200]", "F8_E4M3 [200, 300]"]);
}

#[test]
fn scales_without_their_weight_are_named() {
    // Beside weights that need none.
    for (dtype, bytes) in [("BF16", 512), ("F32", 1024)] {
        let folder = model(&[], &[("w", dtype, &[4, 64], bytes), ("w_scale_inv", "F32", &[1, 1], 4)]);
        let (code, text) = refusal(&weight(&folder, 4, 64).unwrap_err());
        assert_eq!(code, "model_corrupt");
        assert_says(&text, &["`w`", "`w_scale_inv`", "model.safetensors", dtype]);
    }
    let folder = model(&[], &[("w", "U8", &[256], 256), ("w.qs", "F32", &[4], 16), ("w_scale_inv", "F32", &[1, 1], 4)]);
    assert_says(&refusal(&weight(&folder, 4, 64).unwrap_err()).1, &["`w_scale_inv`"]);
    // Without any weight.
    let folder = model(&[], &[("a.weight_scale_inv", "F32", &[1, 1], 4), ("b.weight.qs", "F32", &[4], 16)]);
    let error = folder.open().unwrap().check_scales().unwrap_err();
    assert_eq!((error.code(), error.faults().len()), ("model_incomplete", 2));
    assert_says(&refusal(&error).1, &["`a.weight_scale_inv`", "`a.weight`", "`b.weight.qs`", "`b.weight`", "fetch"]);
}

#[test]
fn scales_may_lie_before_their_codes_and_in_other_shards() {
    let folder = Folder::new();
    write_shard(&folder, "out-00000.safetensors", &[], &[("a.qs", "F32", &[4], 16), ("a", "U8", &[128], 128)]);
    write_shard(&folder, "out-00001.safetensors", &[], &[("b", "U8", &[256], 256)]);
    write_shard(&folder, "out-mtp-00000.safetensors", &[], &[("b.qs", "F32", &[4], 16)]);
    write_shard(&folder, "out-idx-00000.safetensors", &[], &[("n", "BF16", &[64], 128)]);
    let catalog = folder.open().unwrap();
    assert_eq!(catalog.files().len(), 4);
    let of = |name| catalog.weight(name, 4, 64, GroupSize::NONE).unwrap();
    let a = of("a");
    assert_eq!(a.format, Format::Int4Row);
    assert_eq!(a.scales.map(|scales| (scales.file, scales.offset + 16)), Some((a.codes.file, a.codes.offset)));
    let b = of("b");
    assert_eq!(b.format, Format::Int8Row);
    assert_ne!(b.scales.unwrap().file, b.codes.file);
    assert_eq!(catalog.vector("n", 64).unwrap().format, Format::Bf16);
    assert!(catalog.check_scales().is_ok());
    // The same name in two families of shards is refused.
    write_shard(&folder, "out-idx-00001.safetensors", &[], &[("b.qs", "F32", &[4], 16)]);
    let (code, text) = folder.refusal();
    assert_eq!(code, "model_corrupt");
    assert_says(&text, &["`b.qs`", "out-mtp-00000.safetensors", "out-idx-00001.safetensors"]);
}

#[test]
fn se_07_the_scales_of_quantised_global_tensors_tell_their_rows() {
    let folder = model(
        &[],
        &[
            ("embed", "U8", &[6336], 6336),
            ("embed.qs", "F32", &[99], 396),
            ("head", "U8", &[6400], 6400),
            ("head.qs", "F32", &[64], 256),
        ],
    );
    let catalog = folder.open().unwrap();
    // Fewer rows than the vocabulary has, and a head that lies transposed: as many codes, another number of rows.
    for (name, wanted, found) in [
        ("embed", "6,400 + 400 (int8-row)", "6,336 + 396 bytes"),
        ("head", "6,400 + 400 (int8-row)", "6,400 + 256 bytes"),
    ] {
        let (code, text) = refusal(&catalog.weight(name, 100, 64, GroupSize::NONE).unwrap_err());
        assert_eq!(code, "model_corrupt");
        assert_says(&text, &[&format!("`{name}`"), "[100, 64]", wanted, found, "model.safetensors"]);
    }
    assert_eq!(catalog.weight("embed", 99, 64, GroupSize::NONE).unwrap().format, Format::Int8Row);
    assert_eq!(catalog.weight("head", 64, 100, GroupSize::NONE).unwrap().format, Format::Int8Row);
}

/// A merged expert of width 16 and hidden size 24.
fn merged(codes: u64, scales: u64, dtype: &str) -> Folder {
    let tensors: [Described<'_>; 2] = [
        ("model.layers.0.mlp.experts.3.merged_weight", dtype, &[codes], codes as usize),
        ("model.layers.0.mlp.experts.3.qs", "F32", &[scales], 4 * scales as usize),
    ];
    model(&[], &tensors)
}

#[test]
fn merged_experts_are_three_matrices() {
    const PREFIX: &str = "model.layers.0.mlp.experts.3";
    for dtype in ["I8", "U8"] {
        let catalog = merged(3 * 384, 2 * 16 + 24, dtype).open().unwrap();
        let whole = catalog.get(&format!("{PREFIX}.merged_weight")).unwrap();
        let scales = catalog.get(&format!("{PREFIX}.qs")).unwrap();
        let shapes = [("gate_proj", 16, 24, 0), ("up_proj", 16, 24, 16), ("down_proj", 24, 16, 32)];
        for (index, (part, rows, cols, first_scale)) in shapes.into_iter().enumerate() {
            let found = catalog.weight(&format!("{PREFIX}.{part}.weight"), rows, cols, GroupSize::NONE).unwrap();
            assert_eq!((found.format, found.rows, found.cols), (Format::Int8Row, rows, cols));
            let codes = Span { file: whole.file, offset: whole.offset + 384 * index as u64, bytes: 384 };
            let offset = scales.offset + 4 * first_scale;
            assert_eq!(found.codes, codes);
            assert_eq!(found.scales, Some(Span { file: scales.file, offset, bytes: 4 * rows as u64 }));
        }
        assert!(catalog.check_scales().is_ok());
        // Only experts of that layer, and only their matrices.
        for name in ["model.layers.0.mlp.experts.4.up_proj.weight", "model.layers.0.mlp.experts.3.w1.weight"] {
            assert_eq!(catalog.weight(name, 16, 24, GroupSize::NONE).unwrap_err().code(), "model_incomplete");
        }
    }
}

#[test]
fn merged_experts_of_another_size_are_refused() {
    let name = "model.layers.0.mlp.experts.3.up_proj.weight";
    for (codes, scales, dtype) in [(1151, 56, "I8"), (1153, 56, "I8"), (1152, 55, "I8"), (1152, 57, "U8"), (0, 0, "I8")]
    {
        let folder = merged(codes, scales, dtype);
        let (code, text) = refusal(&folder.open().unwrap().weight(name, 16, 24, GroupSize::NONE).unwrap_err());
        assert_eq!(code, "model_corrupt");
        let found = format!("{codes} + {} bytes", 4 * scales);
        assert_says(&text, &["merged_weight`", "model.safetensors", "1152 + 224 bytes", &found, "up_proj"]);
    }
    let catalog = merged(1152, 56, "I8").open().unwrap();
    for (rows, cols) in [(24, 16), (usize::MAX, 24), (0, 24), (usize::MAX, usize::MAX)] {
        assert_eq!(catalog.weight(name, rows, cols, GroupSize::NONE).unwrap_err().code(), "model_corrupt");
    }
    let alone = model(&[], &[("model.layers.0.mlp.experts.3.merged_weight", "I8", &[1152], 1152)]);
    let error = alone.open().unwrap().weight(name, 16, 24, GroupSize::NONE).unwrap_err();
    assert_eq!(error.code(), "model_incomplete");
    assert_says(&refusal(&error).1, &["experts.3.qs`"]);
    // The matrix of its own and the merged one: which is meant would be a guess.
    let twice = model(
        &[],
        &[
            ("model.layers.0.mlp.experts.3.merged_weight", "I8", &[1152], 1152),
            ("model.layers.0.mlp.experts.3.qs", "F32", &[56], 224),
            (name, "F32", &[16, 24], 1536),
        ],
    );
    let error = twice.open().unwrap().weight(name, 16, 24, GroupSize::NONE).unwrap_err();
    assert_eq!(error.code(), "model_corrupt");
    assert_says(&refusal(&error).1, &["up_proj", "merged_weight`"]);
}

#[test]
fn more_stamps_than_other_readers_take_are_read() {
    let stamps: Vec<String> = (0..5000).map(|i| format!(r#""t{i}":"int4-row""#)).collect();
    let stamps = format!(r#"{{{},"w":"int8-row"}}"#, stamps.join(","));
    let folder = model(&[("colibri.fmt", &stamps)], &quantised("w", "w.qs", &[[256], [4]]));
    assert_eq!(weight(&folder, 4, 64).unwrap(), Format::Int8Row);
    // A stamp is of the file that holds the tensor.
    let folder = Folder::new();
    write_shard(&folder, "a.safetensors", &[("colibri.fmt", r#"{"w":"int4-row"}"#)], &[("v", "F32", &[1], 4)]);
    write_shard(&folder, "b.safetensors", &[], &quantised("w", "w.qs", &[[256], [4]]));
    assert_eq!(weight(&folder, 4, 64).unwrap(), Format::Int8Row);
}
