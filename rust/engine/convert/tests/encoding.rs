//! What is written: codes, scales, layout, companions, manifest.

use super::*;

/// The format that a slot gets.
fn target(slot: &TensorSlot, options: &ConvertOptions) -> Format {
    target_of(slot, options).1
}

/// Compares codes and scales of a container with those of the whole weights, byte for byte.
fn assert_encoded(out: &Path, tensors: &[Tensor], options: &ConvertOptions) {
    let catalog = Catalog::open(out).unwrap();
    for (slot, location) in slots().iter().zip(locate_all(&catalog, &slots())) {
        let format = target(slot, options);
        assert_eq!(location.format, format, "{}", slot.name);
        assert_eq!(catalog.stamp(&slot.name), Some(format.stamp()));
        let (rows, cols, _) = extent(slot.shape);
        let (codes, scales) = encoded(&weights(tensors, slot), (rows, cols), format, options.scale_rule);
        assert!(bytes_of(&catalog, location.codes) == codes, "codes of {} differ", slot.name);
        assert!(scales_of(&catalog, &location) == scales, "scales of {} differ", slot.name);
        // A weight and its scales are never apart (CV-06).
        assert!(location.scales.is_none_or(|scales| scales.file == location.codes.file), "{}", slot.name);
    }
    assert_eq!(catalog.tensors().filter(|tensor| !tensor.name.ends_with(".qs")).count(), slots().len());
}

const SOURCES: [Stored; 7] = [
    Stored::Float(Format::F32),
    Stored::Float(Format::Bf16),
    Stored::Float(Format::F16),
    Stored::Fp8(Dtype::F32),
    Stored::Fp8(Dtype::Bf16),
    Stored::Fp8(Dtype::F8E8m0),
    Stored::Mixed,
];

#[test]
fn every_format_of_every_source_equals_the_whole_weight_encoded_cv_03_cv_06_cv_09() {
    for (index, source) in SOURCES.into_iter().enumerate() {
        let tensors = tensors(source);
        let home = home(&tensors, 1 + index);
        let mut sizes = Vec::new();
        for (format, scale_rule) in TARGET_FORMATS.iter().zip([ScaleRule::AbsMax, ScaleRule::Search].iter().cycle()) {
            let options = ConvertOptions {
                experts: *format,
                dense: *format,
                embeddings: *format,
                mtp: *format,
                scale_rule: *scale_rule,
                verify: index == 0,
                ..ConvertOptions::default()
            };
            let out = home.path().join(format!("out-{}", format.name()));
            let report = convert(&home.path().join("source"), &out, &options, &NoWatch).unwrap();
            assert_encoded(&out, &tensors, &options);
            sizes.push((format.name(), report.classes[0].bytes));
            assert_eq!(report.bytes, Catalog::open(&out).unwrap().total_bytes());
            assert_eq!(report.classes.iter().map(|class| class.tensors).sum::<u64>(), slots().len() as u64);
            let read_back = if index == 0 { report.shards.len() as u64 } else { 0 };
            assert_eq!((report.verified_shards, report.resumed_shards), (read_back, 0));
            for class in &report.classes {
                let error = class.relative_error.unwrap();
                let bound = match class.format.as_str() {
                    "q3g64" => 0.25,
                    format if format.starts_with("q4") => 0.15,
                    _ => 0.02,
                };
                assert!(error < bound && (error == 0.0) == (class.format == "f32"), "{source:?} {class:?}");
            }
        }
        // The bits that are asked for are the bits that are written.
        let size = |format: Format| sizes.iter().find(|(name, _)| *name == format.name()).unwrap().1 as f64;
        assert!(size(Format::F32) > 3.0 * size(Format::Int8Row) && size(Format::Int8Row) > 1.5 * size(Format::Int4Row));
    }
}

#[test]
fn experts_and_scales_that_straddle_files_come_together() {
    let tensors = tensors(Stored::Fp8(Dtype::F32));
    let options = ConvertOptions { scale_rule: ScaleRule::AbsMax, ..ConvertOptions::default() };
    for shards in [2, 5, 17, tensors.len()] {
        for home in [home(&tensors, shards), indexed_home(&tensors, shards)] {
            let report = run(home.path(), &options).unwrap();
            assert_encoded(&home.path().join("out"), &tensors, &options);
            assert!(report.held.files >= 2 && report.steps as usize <= shards, "{:?}", report.held);
        }
    }
}

#[test]
fn twelve_experts_keep_their_numbers_cv_10() {
    let mut config = config();
    config["n_routed_experts"] = json!(12);
    let slots = crate::blueprint::Blueprint::parse(config.as_object().unwrap()).unwrap().slots();
    let tensors: Vec<Tensor> = slots
        .iter()
        .map(|slot| {
            let (rows, cols, shape) = extent(slot.shape);
            let value = slot.expert.map_or(0.5, |expert| expert as f32);
            let data = value.to_le_bytes().repeat(rows * cols);
            Tensor { name: slot.name.clone(), shape, dtype: Dtype::F32, data }
        })
        .collect();
    let home = home(&tensors, 3);
    fs::write(home.path().join("source/config.json"), config.to_string()).unwrap();
    run(home.path(), &ConvertOptions { mtp: Format::Q4G64, ..ConvertOptions::default() }).unwrap();
    let catalog = Catalog::open(&home.path().join("out")).unwrap();
    for (slot, location) in slots.iter().zip(locate_all(&catalog, &slots)) {
        let Some(expert) = slot.expert else { continue };
        for value in decode(&catalog, &location) {
            assert!((value - expert as f32).abs() < 1e-4, "{} holds {value}", slot.name);
        }
    }
}

#[test]
fn rows_that_no_group_divides_keep_their_tail_cv_12() {
    // Rows of 33 and 200 columns in groups of 64: the last group is short.
    let tensors = tensors(Stored::Float(Format::F32));
    let home = home(&tensors, 1);
    let options = ConvertOptions { scale_rule: ScaleRule::AbsMax, ..ConvertOptions::default() };
    run(home.path(), &options).unwrap();
    let catalog = Catalog::open(&home.path().join("out")).unwrap();
    let ragged = slots().into_iter().filter(|slot| slot.name.ends_with("down_proj.weight"));
    let mut checked = 0;
    for slot in ragged.filter(|slot| target(slot, &options) == Format::Q4G64) {
        let (location, (rows, cols, _)) = (locate(&catalog, &slot), extent(slot.shape));
        let scales = scales_of(&catalog, &location);
        assert_eq!(scales.len(), rows * cols.div_ceil(64));
        let source = weights(&tensors, &slot);
        for (at, value) in decode(&catalog, &location).into_iter().enumerate() {
            let scale = scales[at / cols * cols.div_ceil(64) + at % cols / 64];
            assert!((value - source[at]).abs() <= 0.5001 * scale, "{} at {at}", slot.name);
        }
        checked += 1;
    }
    assert!(checked > 4);
}

#[test]
fn records_are_contiguous_and_aligned_and_pads_have_their_own_names() {
    let home = home(&tensors(Stored::Float(Format::F32)), 1);
    run(home.path(), &ConvertOptions::default()).unwrap();
    let catalog = Catalog::open(&home.path().join("out")).unwrap();
    let mut ends = Vec::new();
    let experts: Vec<TensorSlot> = slots().into_iter().filter(|slot| slot.expert.is_some()).collect();
    for record in experts.chunks(3) {
        let places: Vec<WeightLocation> = record.iter().map(|slot| locate(&catalog, slot)).collect();
        assert!(record[0].name.contains("gate") && record[1].name.contains("up") && record[2].name.contains("down"));
        let spans: Vec<_> =
            places.iter().map(|place| place.codes).chain(places.iter().filter_map(|place| place.scales)).collect();
        assert_eq!(spans.len(), 6);
        assert_eq!(spans[0].offset % 4096, 0, "{}", record[0].name);
        for pair in spans.windows(2) {
            assert_eq!(pair[1].offset % 64, 0);
            assert_eq!(pair[1].offset, (pair[0].offset + pair[0].bytes).next_multiple_of(64));
            assert_eq!(pair[1].file, pair[0].file);
        }
        ends.push(((spans[5].offset + spans[5].bytes).next_multiple_of(4096), spans[5].file));
    }
    for (file, info) in catalog.files().iter().enumerate() {
        let dense = info.path.to_string_lossy().contains("dense");
        let last = ends.iter().filter(|(_, id)| id.0 as usize == file).map(|(end, _)| *end).max();
        assert_eq!(last, (!dense).then_some(info.bytes), "a record fills its last page and nothing follows");
    }
    let mut pads = Vec::new();
    for info in catalog.files() {
        let content = fs::read(&info.path).unwrap();
        let length = u64::from_le_bytes(content[..8].try_into().unwrap()) as usize;
        assert_eq!((8 + length) % 4096, 0);
        let header: Value = serde_json::from_slice(&content[8..8 + length]).unwrap();
        pads.extend(header.as_object().unwrap().keys().filter(|name| name.starts_with("__pad__.")).cloned());
    }
    let count = pads.len();
    pads.sort();
    pads.dedup();
    assert!(count > 0 && pads.len() == count, "pad names repeat");
}

#[test]
fn the_number_of_workers_and_a_second_run_change_no_byte() {
    let home = home(&tensors(Stored::Float(Format::Bf16)), 1);
    let mut first: Option<Vec<(String, Vec<u8>)>> = None;
    for (index, workers) in [1, 3, 7, 1].into_iter().enumerate() {
        let out = home.path().join(format!("out{index}"));
        let options = ConvertOptions { workers, ..ConvertOptions::default() };
        convert(&home.path().join("source"), &out, &options, &NoWatch).unwrap();
        let files = names(&out).into_iter().map(|name| (name.clone(), fs::read(out.join(&name)).unwrap())).collect();
        match &first {
            None => first = Some(files),
            Some(first) => assert!(*first == files, "{workers} workers"),
        }
    }
}

#[test]
fn weights_on_the_int4_grid_lose_nothing() {
    // Codes -7..7 with a scale for each group of 64, 5 significant bits: what quantisation-aware training leaves.
    let grid: Vec<Tensor> = slots()
        .iter()
        .map(|slot| {
            let (_, cols, shape) = extent(slot.shape);
            let mut weights = values(&slot.name, shape.iter().product::<u64>() as usize);
            for row in weights.chunks_mut(cols) {
                for (index, group) in row.chunks_mut(64).enumerate() {
                    let scale = (17 + index as i32 % 15) as f32 / 1024.0;
                    group.iter_mut().for_each(|value| *value = (*value * 14.0).round() * scale);
                    group[0] = 7.0 * scale;
                }
            }
            let data = weights.iter().flat_map(|value| value.to_le_bytes()).collect();
            Tensor { name: slot.name.clone(), shape, dtype: Dtype::F32, data }
        })
        .collect();
    let home = home(&grid, 1);
    let report = run(home.path(), &ConvertOptions::default()).unwrap();
    for class in report.classes.iter().filter(|class| class.format == "q4g64") {
        assert_eq!(class.relative_error, Some(0.0), "{}", class.class);
    }
}

#[test]
fn companions_and_manifest_tell_what_was_done() {
    let home = home(&tensors(Stored::Float(Format::F32)), 1);
    let report = run(home.path(), &ConvertOptions::default()).unwrap();
    let out = home.path().join("out");
    assert_eq!(
        names(&out),
        ["colibri.json", "config.json", "dense-00001.safetensors", "experts-00001.safetensors", "tokenizer.json"]
    );
    let catalog = Catalog::open(&out).unwrap();
    let manifest = catalog.manifest().unwrap();
    assert_eq!((manifest.source.name.as_str(), manifest.source.model_type.as_str()), ("source", "glm_moe_dsa"));
    assert_eq!((manifest.scale_rule.as_str(), manifest.multi_token_prediction), ("search", true));
    assert_eq!(manifest.quantisation[0].format, "q4g64");
    for file in manifest.shards.iter().chain(&manifest.files) {
        let path = out.join(&file.file);
        assert_eq!(file.bytes, fs::metadata(&path).unwrap().len());
        assert_eq!(file.sha256, colibri_store::digest::sha256_file(&path, &mut |_| true).unwrap());
    }
    assert_eq!(report.shards, manifest.shards);
    let checked = verify(&out, &NoWatch).unwrap();
    assert!(
        checked.is_sound() && checked.files as usize == manifest.shards.len() + manifest.files.len(),
        "{checked:?}"
    );
}

#[test]
fn what_text_needs_travels_along_and_what_is_missing_is_named_cv_07() {
    let home = home(&tensors(Stored::Float(Format::F32)), 1);
    let source = home.path().join("source");
    let there = ["generation_config.json", "tokenizer_config.json", "vocab.json", "merges.txt", "LICENSE"];
    for name in there {
        fs::write(source.join(name), "{}").unwrap();
    }
    fs::create_dir(source.join("additional_chat_templates")).unwrap();
    let report = run(home.path(), &ConvertOptions::default()).unwrap();
    for name in there.iter().chain(&["tokenizer.json"]) {
        assert_eq!(fs::read(source.join(name)).unwrap(), fs::read(home.path().join("out").join(name)).unwrap());
    }
    assert!(!home.path().join("out/notes.txt").exists());
    let notes = report.notes.join(" | ");
    assert!(notes.contains("chat_template.jinja is not") && !notes.contains("tokenizer.json is not"), "{notes}");
    fs::write(source.join("tokenizer_config.json"), r#"{"chat_template":"{{ messages }}"}"#).unwrap();
    fs::remove_file(source.join("generation_config.json")).unwrap();
    let dry = Conversion::dry_run(&source, &home.path().join("other"), &ConvertOptions::default()).unwrap();
    let notes = dry.notes.join(" | ");
    assert!(notes.contains("generation_config.json is not") && !notes.contains("chat_template.jinja"), "{notes}");
}

#[test]
fn a_dry_run_predicts_every_size_and_writes_nothing() {
    let home = home(&tensors(Stored::Float(Format::F32)), 1);
    let (source, out) = (home.path().join("source"), home.path().join("out"));
    let dry = Conversion::dry_run(&source, &out, &ConvertOptions::default()).unwrap();
    assert_eq!(names(home.path()), ["source"]);
    assert!(dry.dry_run && dry.space.is_some_and(|space| space.suffices && space.needed == dry.bytes));
    let estimate = dry.estimate.unwrap();
    assert!(estimate.low > 0.0 && estimate.low <= estimate.high && estimate.basis.contains("q4g64"), "{estimate:?}");
    assert_eq!((dry.held.files, dry.held.bytes), (1, dry.source_bytes));
    let real = run(home.path(), &ConvertOptions::default()).unwrap();
    assert_eq!((dry.bytes, dry.shards.len()), (real.bytes, real.shards.len()));
    for (dry, real) in dry.classes.iter().zip(&real.classes) {
        assert_eq!((dry.class, dry.bytes, dry.parameters), (real.class, real.bytes, real.parameters));
        assert_eq!(dry.relative_error, None);
    }
}

#[test]
fn the_prediction_layer_can_be_left_out_and_may_be_absent() {
    let options = ConvertOptions { keep_mtp: false, ..ConvertOptions::default() };
    let with = home(&tensors(Stored::Float(Format::F32)), 1);
    let report = run(with.path(), &options).unwrap();
    assert!(!report.multi_token_prediction);
    let catalog = Catalog::open(&with.path().join("out")).unwrap();
    assert!(catalog.tensors().all(|tensor| !tensor.name.starts_with("model.layers.2.")));
    let mut rest = tensors(Stored::Float(Format::F32));
    rest.retain(|tensor| !tensor.name.starts_with("model.layers.2."));
    let without = home(&rest, 1);
    assert!(!run(without.path(), &ConvertOptions::default()).unwrap().multi_token_prediction);
}
