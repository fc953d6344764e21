//! What is taken over as it is: public containers, merged experts, FP8 and float checkpoints.

use super::*;

fn repack(home: &Path) -> ConvertReport {
    let options = ConvertOptions { repack: true, verify: true, ..ConvertOptions::default() };
    convert(&home.join("source"), &home.join("out"), &options, &NoWatch).unwrap()
}

/// Format, codes and scales of every weight.
type Weights = Vec<(String, Format, Vec<u8>, Vec<f32>)>;

fn all_weights(folder: &Path, slots: &[TensorSlot]) -> Weights {
    let catalog = Catalog::open(folder).unwrap();
    let locations = locate_all(&catalog, slots);
    let weight = |(slot, location): (&TensorSlot, WeightLocation)| {
        (slot.name.clone(), location.format, bytes_of(&catalog, location.codes), scales_of(&catalog, &location))
    };
    slots.iter().zip(locations).map(weight).collect()
}

#[test]
fn checkpoints_are_taken_over_bit_for_bit() {
    for source in [Stored::Float(Format::Bf16), Stored::Fp8(Dtype::F32), Stored::Fp8(Dtype::F8E8m0), Stored::Mixed] {
        let home = home(&tensors(source), 3);
        let report = repack(home.path());
        assert!(report.repack && report.verified_shards == report.shards.len() as u64);
        let there = all_weights(&home.path().join("source"), &slots());
        let here = all_weights(&home.path().join("out"), &slots());
        for (there, here) in there.iter().zip(&here) {
            assert!(there == here, "{} of {source:?}", there.0);
        }
        let catalog = Catalog::open(&home.path().join("out")).unwrap();
        for (name, format, _, _) in &here {
            assert_eq!(catalog.stamp(name), Some(format.stamp()));
        }
        let manifest = catalog.manifest().unwrap();
        assert_eq!(manifest.scale_rule, "as source");
        let experts: Vec<&str> = manifest
            .quantisation
            .iter()
            .filter(|class| class.class == "experts")
            .map(|class| class.format.as_str())
            .collect();
        if source == Stored::Mixed {
            assert!(experts.len() > 1 && experts.contains(&"fp8") && experts.contains(&"bf16"), "{experts:?}");
        }
    }
}

/// The tensors of a public container: codes flat, scales beside them, in the given formats.
pub(super) fn public(format: &dyn Fn(&TensorSlot) -> Format) -> Vec<Tensor> {
    let of_slot = |slot: &TensorSlot| {
        let (rows, cols, _) = extent(slot.shape);
        let format = format(slot);
        if !format.quantised() {
            return vec![float(slot, Format::F32)];
        }
        let (codes, scales) = encoded(&values(&slot.name, rows * cols), (rows, cols), format, ScaleRule::AbsMax);
        let scales: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let flat = |name: String, dtype, data: Vec<u8>, width: usize| Tensor {
            name,
            shape: vec![(data.len() / width) as u64],
            dtype,
            data,
        };
        vec![flat(slot.name.clone(), Dtype::U8, codes, 1), flat(format!("{}.qs", slot.name), Dtype::F32, scales, 4)]
    };
    slots().iter().flat_map(of_slot).collect()
}

#[test]
fn public_containers_of_every_format_are_taken_over_bit_for_bit() {
    let formats = [
        Format::Int4Row,
        Format::Int4Grouped { group: 32 },
        Format::Q4G64,
        Format::Int8Row,
        Format::Int3G64,
        Format::Int2Row,
    ];
    for format in formats {
        let of_slot = |slot: &TensorSlot| match class_of(slot) {
            StorageClass::Kept => Format::F32,
            StorageClass::Embedding | StorageClass::Head | StorageClass::Indexer => Format::Int8Row,
            StorageClass::Mtp | StorageClass::MtpExperts => Format::Int8Row,
            _ => format,
        };
        let home = home(&public(&of_slot), 4);
        let report = repack(home.path());
        let there = all_weights(&home.path().join("source"), &slots());
        let here = all_weights(&home.path().join("out"), &slots());
        assert!(there == here, "{format:?}");
        assert!(there.iter().any(|weight| weight.1 == format));
        assert!(report.classes.iter().all(|class| class.relative_error.is_none()));
    }
}

#[test]
fn a_repack_is_taken_up_when_its_source_is_half_gone() {
    let kept = |slot: &TensorSlot| match class_of(slot) {
        StorageClass::Kept => Format::F32,
        StorageClass::Experts => Format::Int4Grouped { group: 32 },
        _ => Format::Int8Row,
    };
    let tensors = public(&kept);
    let whole = home(&tensors, 5);
    repack(whole.path());
    let home = home(&tensors, 5);
    let options = ConvertOptions { repack: true, delete_source: true, ..ConvertOptions::default() };
    let (source, out) = (home.path().join("source"), home.path().join("out"));
    let count = Conversion::open(&source, &out, &options).unwrap().steps().len();
    for step in 0..count {
        let mut conversion = Conversion::open(&source, &out, &options).unwrap();
        conversion.run_step(step, &NoWatch).unwrap();
    }
    assert!(names(&source).iter().all(|name| !name.ends_with(".safetensors")));
    let report = Conversion::open(&source, &out, &options).unwrap().finish(&NoWatch).unwrap();
    assert_eq!(report.resumed_shards, report.shards.len() as u64);
    assert!(contents(&out) == contents(&whole.path().join("out")));
}

/// A small model with merged experts.
fn olmoe() -> (Value, Vec<TensorSlot>) {
    let config = json!({
        "model_type": "olmoe", "vocab_size": 48, "hidden_size": 48, "intermediate_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "num_experts": 12, "num_experts_per_tok": 2,
        "norm_topk_prob": false, "rope_theta": 10000.0, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": false, "eos_token_id": 1
    });
    let slots = crate::blueprint::Blueprint::parse(config.as_object().unwrap()).unwrap().slots();
    (config, slots)
}

#[test]
fn merged_experts_become_records_with_their_own_values_cv_10() {
    let (config, slots) = olmoe();
    let mut tensors = Vec::new();
    for triple in slots.chunk_by(|left, right| left.expert.is_some() && left.expert == right.expert) {
        let Some(expert) = triple[0].expert else {
            tensors.extend(triple.iter().map(|slot| float(slot, Format::Bf16)));
            continue;
        };
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        for slot in triple {
            let (rows, cols, _) = extent(slot.shape);
            codes.extend(vec![expert as u8; rows * cols]);
            scales.extend((0..rows).flat_map(|row| (1.0 + row as f32).to_le_bytes()));
        }
        let stem = triple[0].name.strip_suffix(".gate_proj.weight").unwrap();
        let (name, shape) = (format!("{stem}.merged_weight"), vec![codes.len() as u64]);
        tensors.push(Tensor { name, shape, dtype: Dtype::I8, data: codes });
        let (name, shape) = (format!("{stem}.qs"), vec![scales.len() as u64 / 4]);
        tensors.push(Tensor { name, shape, dtype: Dtype::F32, data: scales });
    }
    let home = home(&tensors, 7);
    fs::write(home.path().join("source/config.json"), config.to_string()).unwrap();
    let error = run(home.path(), &ConvertOptions::default()).unwrap_err();
    assert!(error.to_string().contains("quantised already"), "{error}");
    repack(home.path());
    let here = all_weights(&home.path().join("out"), &slots);
    assert!(all_weights(&home.path().join("source"), &slots) == here);
    for (slot, (name, format, codes, scales)) in slots.iter().zip(&here) {
        let Some(expert) = slot.expert else { continue };
        assert!(*format == Format::Int8Row && codes.iter().all(|code| *code == expert as u8), "{name}");
        assert!(scales.iter().enumerate().all(|(row, scale)| *scale == 1.0 + row as f32), "{name}");
    }
}

#[test]
fn a_described_family_is_converted_in_four_and_in_eight_bits_cv_03() {
    let (config, slots) = olmoe();
    let tensors: Vec<Tensor> = slots.iter().map(|slot| float(slot, Format::Bf16)).collect();
    let home = home(&tensors, 3);
    fs::write(home.path().join("source/config.json"), config.to_string()).unwrap();
    let mut sizes = Vec::new();
    for (format, steps) in [(Format::Int4Row, 7.0), (Format::Int8Row, 127.0)] {
        let out = home.path().join(format.name());
        let scale_rule = ScaleRule::AbsMax;
        let options = ConvertOptions { experts: format, dense: format, scale_rule, ..ConvertOptions::default() };
        let report = convert(&home.path().join("source"), &out, &options, &NoWatch).unwrap();
        sizes.push(report.classes.iter().find(|class| class.class == "experts").unwrap().bytes as f64);
        let catalog = Catalog::open(&out).unwrap();
        for (slot, location) in slots.iter().zip(locate_all(&catalog, &slots)) {
            if slot.expert.is_none() {
                continue;
            }
            assert_eq!(location.format, format);
            for (value, source) in decode(&catalog, &location).iter().zip(weights(&tensors, slot)) {
                assert!((value - source).abs() <= 0.5001 * 0.5 / steps, "{}: {value} {source}", slot.name);
            }
        }
    }
    assert!(sizes[1] / sizes[0] > 1.5 && sizes[1] / sizes[0] < 2.1, "{sizes:?}");
}

#[test]
fn absmax_gives_the_codes_and_scales_of_the_public_containers() {
    let oracle = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/oracle");
    let digests: Value =
        serde_json::from_slice(&fs::read(oracle.join("upstream_containers/digests.json")).unwrap()).unwrap();
    let cases = [
        ("glm_tiny_int4row_mtp8", Format::Int4Row, Format::Int8Row),
        ("glm_tiny_fp8_int4g64", Format::Q4G64, Format::Q4G64),
    ];
    for (name, main, mtp) in cases {
        let home = tempfile::tempdir().unwrap();
        let source = oracle.join(digests[name]["model"].as_str().unwrap());
        let (scale_rule, out) = (ScaleRule::AbsMax, home.path().join("out"));
        let options = ConvertOptions { experts: main, dense: main, mtp, scale_rule, ..ConvertOptions::default() };
        convert(&source, &out, &options, &NoWatch).unwrap();
        let catalog = Catalog::open(&out).unwrap();
        let tensors = digests[name]["tensors"].as_object().unwrap();
        for (tensor, published) in tensors {
            let info = catalog.get(tensor).unwrap();
            let span = colibri_store::source::Span { file: info.file, offset: info.offset, bytes: info.bytes };
            let mut digest = colibri_store::digest::Digester::new();
            digest.update(&bytes_of(&catalog, span));
            assert_eq!(digest.finish(), published["sha256"].as_str().unwrap(), "{tensor} of {name}");
        }
        // What the published ones lack: the indexer of the prediction layer, with the scales of its three matrices.
        assert_eq!(catalog.tensors().len() - tensors.len(), 8);
    }
}
