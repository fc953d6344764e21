//! GLM-5.2's known sizes from its configuration alone, every kind of listing, and the speed of light in numbers.

use colibri_kernels::format::Format;
use colibri_store::budget::RamLimit;
use colibri_store::machine::MachineFacts;
use serde_json::{Map, Value, json};

use super::estimate::{Load, Speeds};
use super::project::{Layout, Projection};
use super::remote::plan_on;
use super::*;
use crate::blueprint::Blueprint;
use crate::convert::Conversion;

/// The configuration of GLM-5.2.
fn glm() -> Map<String, Value> {
    let value = json!({
        "model_type": "glm_moe_dsa", "vocab_size": 154_880, "hidden_size": 6144, "intermediate_size": 12_288,
        "moe_intermediate_size": 2048, "num_hidden_layers": 78, "first_k_dense_replace": 3, "num_attention_heads": 64,
        "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "q_lora_rank": 2048,
        "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "qk_head_dim": 256, "v_head_dim": 256,
        "index_topk": 2048, "index_n_heads": 32, "index_head_dim": 128, "index_topk_freq": 4,
        "index_skip_topk_offset": 3, "n_group": 1, "topk_group": 1, "norm_topk_prob": true,
        "routed_scaling_factor": 2.5, "rms_norm_eps": 1e-5, "max_position_embeddings": 202_752,
        "num_nextn_predict_layers": 1, "tie_word_embeddings": false,
        "rope_parameters": {"rope_theta": 8e6, "rope_type": "default"}, "eos_token_id": [154_820, 154_827, 154_829]
    });
    value.as_object().unwrap().clone()
}

fn machine() -> MachineFacts {
    MachineFacts {
        memory_available: Some(60_000_000_000),
        memory_total: Some(64_000_000_000),
        cgroup_limit: None,
        cgroup_used: None,
        cores_physical: Some(8),
        cores_allowed: 8,
        page_size: Some(4096),
        swap_used: Some(0),
        cpu_name: None,
    }
}

fn engine(ram: u64) -> EngineConfig {
    EngineConfig { ram: RamLimit::Bytes(ram), ..EngineConfig::default() }
}

/// Files of `total` bytes together, with the given beginnings of their names.
fn listing(stems: &[&str], each: usize, total: u64) -> RemoteListing {
    let count = (stems.len() * each) as u64;
    let name = |stem: &str, number: usize| format!("{stem}{number:05}.safetensors");
    let files = stems.iter().flat_map(|stem| (0..each).map(move |number| (name(stem, number), total / count)));
    RemoteListing { files: files.chain([("config.json".to_owned(), 4000)]).collect(), ..RemoteListing::default() }
}

fn remote(listing: &RemoteListing, ram: u64) -> Result<PlanReport, EngineError> {
    plan_on(&machine(), &glm(), listing, &engine(ram))
}

/// `value` within `percent` of `expected`.
fn near(value: u64, expected: f64, percent: f64) {
    let off = 100.0 * (value as f64 / expected - 1.0).abs();
    assert!(off <= percent, "{value} is {off:.2} % from {expected}");
}

#[test]
fn the_known_sizes_of_the_large_model_come_out() {
    let slots = Blueprint::parse(&glm()).unwrap().slots();
    let grouped = Projection::of_conversion(&slots, &ConvertOptions::default()).unwrap();
    assert_eq!(grouped.experts.expert_count() + grouped.prediction.expert_count(), 19_456);
    assert_eq!((grouped.experts.slot_bytes(), grouped.prediction.slot_bytes()), (21_233_664, 37_789_696));
    // The published numbers leave out the scales of rows, and the norms.
    near(grouped.resident, 12.07e9, 0.4);
    near(grouped.bytes, 429.4e9, 0.1);
    near(grouped.parameters, 753.3e9, 0.2);
    let options = ConvertOptions { dense: Format::Int4Row, experts: Format::Int4Row, ..ConvertOptions::default() };
    let per_row = Projection::of_conversion(&slots, &options).unwrap();
    near(per_row.resident, 11.05e9, 0.4);
    let classes: u64 = per_row.classes.iter().map(|class| class.bytes).sum();
    assert!(classes <= per_row.bytes && per_row.bytes - classes < 19_456 * 4096);
    // The per-row container is published without the prediction layer.
    let mut short = Blueprint::parse(&glm()).unwrap();
    short.drop_prediction();
    let public = Projection::new(&short.slots(), Layout::Apart, &|slot| match slot.class {
        TensorClass::Embedding | TensorClass::Head | TensorClass::Indexer => Format::Int8Row,
        TensorClass::Router | TensorClass::Norm => Format::F32,
        _ => Format::Int4Row,
    });
    near(public.unwrap().bytes, 372.1e9, 0.6);
}

#[test]
fn a_public_container_is_told_by_its_size_and_its_file_names() {
    let report = remote(&listing(&["out-", "out-mtp-", "out-idx-"], 48, 429_300_000_000), 20_000_000_000).unwrap();
    assert_eq!(report.container, "a public container, int4 in groups of 64");
    assert!(report.basis[0].contains("known layout nearest to the listed 429.3 GB"), "{:?}", report.basis);
    assert!(report.model.has_mtp && report.model.has_indexer && report.conversion.is_none());
    assert_eq!((report.experts_stored, report.model.layers, report.model.moe_layers), (19_456, 78, 75));
    let short = remote(&listing(&["out-"], 142, 372_100_000_000), 20_000_000_000).unwrap();
    assert_eq!(short.container, "a public container, int4 with a scale per row");
    assert!(!short.model.has_mtp && !short.model.has_indexer && short.experts_stored == 19_200);
    near(short.per_token.expert_bytes, 11.35e9, 0.1);

    let unknown = remote(&listing(&["out-"], 10, 200_000_000_000), 20_000_000_000).unwrap_err();
    assert_eq!(unknown.code(), "model_unsupported");
    assert!(unknown.to_string().contains("unknown") && unknown.why().unwrap().contains("200.0 GB"), "{unknown}");
}

#[test]
fn the_numbers_of_a_plan_agree_with_each_other() {
    let files = listing(&["out-", "out-mtp-", "out-idx-"], 48, 429_300_000_000);
    let report = remote(&files, 20_000_000_000).unwrap();
    let token = report.per_token;
    assert_eq!(token.experts, 600);
    near(token.expert_bytes, 12.74e9, 0.1);
    near(token.touched_bytes, 23.6e9, 1.0);
    // About 300 of 19,200 experts are cached.
    assert!((0.005..0.03).contains(&report.hit_rate.low), "{:?}", report.hit_rate);
    assert!(report.hit_rate.high > 2.0 * report.hit_rate.low && token.read_low < token.read_high);
    assert!(token.read_high < token.expert_bytes && token.read_low > 11_500_000_000);
    let ram: u64 = report.tiers.iter().filter(|tier| tier.tier == "RAM").map(|tier| tier.bytes).sum();
    assert_eq!(ram, report.plan.projected_peak);
    let cache = report.tiers.iter().find(|tier| tier.cached_per_layer.is_some()).unwrap();
    assert!(cache.what.starts_with("expert cache: ") && cache.what.ends_with(" of 256 per layer"), "{}", cache.what);
    // Nothing was measured, so no speed is claimed.
    assert!(report.tokens_per_second.is_none() && report.rates.disk.bytes_per_second.is_none());
    assert_eq!(report.bottleneck.resource, "unknown");
    let more = report.more_ram.unwrap();
    assert!(more.slots > report.plan.slots + 600 && more.read_high < token.read_high, "{more:?}");
    assert!(report.basis.iter().any(|line| line.contains("31 %")), "{:?}", report.basis);
    let value = serde_json::to_value(remote(&files, 20_000_000_000).unwrap()).unwrap();
    assert_eq!((&value["version"], &value["fits"], &value["remote"]), (&json!(1), &json!(true), &json!(true)));
    assert!(value["projected_peak"].is_u64() && value["scales"]["reason"].is_string(), "{value}");

    let small = remote(&files, 9_000_000_000).unwrap_err();
    assert_eq!(small.code(), "ram_budget_too_small");
}

#[test]
fn a_checkpoint_is_planned_as_what_conversion_writes() {
    let slots = Blueprint::parse(&glm()).unwrap().slots();
    let mut files = listing(&["model-"], 142, 755_600_000_000);
    files.total_size = Some(755_600_000_000);
    files.weight_map =
        Some(slots.iter().map(|slot| (slot.name.clone(), "model-00000.safetensors".to_owned())).collect());
    let report = remote(&files, 20_000_000_000).unwrap();
    assert_eq!(report.container, "a Hugging Face checkpoint (FP8 with 128 x 128 scales), planned as converted");
    let need = report.conversion.unwrap();
    near(need.container_bytes, 429.4e9, 0.1);
    near(need.source_bytes, 755.6e9, 0.1);
    assert_eq!(need.disk_bytes_streaming, need.container_bytes + need.largest_file_bytes, "all lies in one file");
    assert_eq!(need.disk_bytes_keeping_source, need.container_bytes + need.source_bytes);
    let experts = need.formats.iter().find(|class| class.class == "experts").unwrap();
    assert_eq!((experts.format.as_str(), experts.bytes), ("q4g64", 19_200 * 21_233_664));
    let spread = |index: usize| format!("model-{:05}.safetensors", index * 142 / slots.len());
    let mut many = files.clone();
    many.weight_map = Some(slots.iter().enumerate().map(|(index, slot)| (slot.name.clone(), spread(index))).collect());
    let need = remote(&many, 20_000_000_000).unwrap().conversion.unwrap();
    let held = need.disk_bytes_streaming - need.container_bytes;
    assert!(held >= 2 * need.largest_file_bytes && held < need.source_bytes / 4, "{held}");
    // Without an index three files are taken.
    let unnamed = listing(&["model-"], 142, 1_506_600_000_000);
    let need = remote(&unnamed, 20_000_000_000).unwrap().conversion.unwrap();
    assert_eq!(need.disk_bytes_streaming, need.container_bytes + 3 * need.largest_file_bytes);
    // Without sizes that fit anything, an index without scales is a checkpoint all the same; what it lacks is absent.
    files.total_size = Some(5);
    files.weight_map.as_mut().unwrap().retain(|name, _| !name.contains(".layers.78."));
    let report = remote(&files, 20_000_000_000).unwrap();
    assert!(report.container.contains("unknown precision") && !report.model.has_mtp, "{}", report.container);
}

#[test]
fn files_in_folders_of_the_repository_do_not_count() {
    let mut files = listing(&["out-", "out-mtp-", "out-idx-"], 48, 429_300_000_000);
    let plain = remote(&files, 20_000_000_000).unwrap();
    files.files.push(("ref/model-00001.safetensors".to_owned(), 400_000_000_000));
    let deeper = remote(&files, 20_000_000_000).unwrap();
    assert_eq!((plain.container, plain.model.container_bytes), (deeper.container, deeper.model.container_bytes));
}

#[test]
fn a_guess_says_so_names_what_else_it_may_be_and_how_to_know() {
    let report = remote(&listing(&["out-", "out-mtp-"], 48, 376_000_000_000), 20_000_000_000).unwrap();
    assert!(report.basis[0].contains("a guess by size alone") && report.basis[0].contains("headers decide"));
    assert!(report.basis[0].contains("within 3 % lies also: int4 with a scale per row"), "{}", report.basis[0]);
    let mut unknown = listing(&["out-"], 10, 200_000_000_000);
    unknown.repository = Some("owner/name".to_owned());
    let error = remote(&unknown, 20_000_000_000).unwrap_err();
    assert!(error.fix().unwrap().contains("colibri pull owner/name"), "{:?}", error.fix());
}

#[test]
fn our_own_container_is_planned_from_its_manifest() {
    let class = |class: &str, format: &str| json!({"class": class, "format": format});
    let classes = [("experts", "q3g64"), ("dense", "q4row"), ("embedding", "q8"), ("head", "q8"), ("kept", "f32")];
    let manifest = json!({
        "format": "colibri", "format_version": 1, "writer": "colibri 0",
        "source": {"name": "x", "model_type": "glm_moe_dsa", "bytes": 1},
        "quantisation": classes.iter().map(|(name, format)| class(name, format)).collect::<Vec<_>>(),
        "scale_rule": "search", "multi_token_prediction": false, "files": [],
        "shards": [{"file": "dense-00001.safetensors", "bytes": 327_000_000_000_u64, "sha256": "00"}]
    });
    let mut files = listing(&["experts-"], 1, 1000);
    files.manifest = Some(manifest.clone());
    let report = remote(&files, 20_000_000_000).unwrap();
    assert_eq!((report.container.as_str(), report.model.container_bytes), ("a colibri container", 327_000_000_000));
    assert!(!report.model.has_mtp && !report.model.has_indexer);
    assert_eq!(report.model.formats.experts, ["q3g64"]);
    near(report.per_token.expert_bytes, 9.91e9, 0.1);
    files.manifest = Some(json!({"format": "colibri", "format_version": 99}));
    assert_eq!(remote(&files, 20_000_000_000).unwrap_err().code(), "model_unsupported");
}

#[test]
fn hostile_configurations_and_listings_are_errors() {
    let refused = |change: (&str, Value)| {
        let mut config = glm();
        config.insert(change.0.to_owned(), change.1);
        plan_on(&machine(), &config, &listing(&["out-"], 2, 372_100_000_000), &engine(20_000_000_000)).unwrap_err()
    };
    let error = refused(("hidden_size", json!(-1)));
    assert!(error.code() == "model_corrupt" && error.to_string().contains("hidden_size"), "{error}");
    assert!(refused(("n_routed_experts", json!(4096))).to_string().contains("num_hidden_layers"));
    // Sizes that multiply far beyond any disk end in a refusal and not in a wrapped number.
    let wide = refused(("moe_intermediate_size", json!(1 << 20)));
    assert!(["model_unsupported", "ram_budget_too_small"].contains(&wide.code()), "{wide}");
    let none = RemoteListing::default();
    assert_eq!(remote(&none, 20_000_000_000).unwrap_err().code(), "model_unsupported");
    let huge = listing(&["out-"], 2, u64::MAX);
    assert_eq!(remote(&huge, 20_000_000_000).unwrap_err().code(), "model_unsupported");
}

#[test]
fn speeds_follow_the_speed_of_light() {
    let report = remote(&listing(&["out-", "out-mtp-", "out-idx-"], 48, 429_300_000_000), 20_000_000_000).unwrap();
    let rates = |disk, memory| Rates {
        disk: DiskRate { bytes_per_second: disk, kind: None, basis: String::new() },
        memory: MemoryRate { bytes_per_second: memory, threads: None, basis: String::new() },
    };
    let token = report.per_token;
    let speeds = Speeds::new(&rates(Some(6e9), Some(40e9)));
    let range = speeds.decode(&token).unwrap();
    let near = |value: f64, exact: f64| (value / exact - 1.0).abs() <= 0.05;
    assert!(near(range.high, 6e9 / token.read_low as f64));
    let slowest = token.read_high as f64 / 6e9 + token.touched_bytes as f64 / 40e9;
    assert!(near(range.low, 1.0 / slowest) && range.low < range.high);
    assert_eq!(speeds.bottleneck(&token).resource, "disk");
    let fast = Speeds::new(&rates(Some(100e9), Some(10e9)));
    assert_eq!(fast.bottleneck(&token).resource, "memory");
    assert!(near(fast.decode(&token).unwrap().high, 10e9 / token.touched_bytes as f64));
    assert!(Speeds::new(&rates(None, Some(40e9))).decode(&token).is_none());
    // More memory is named where it makes something faster, and never more than the model lacks.
    let slow = Speeds::new(&rates(Some(6e9), Some(40e9)));
    let mut plan = report.plan.clone();
    assert_eq!(Load::new(&report.model, &plan, 1).more_ram(&plan, &slow).unwrap().bytes, 16_000_000_000);
    plan.slots = plan.sizes.experts_total - 10;
    plan.cache_bytes = plan.slots * plan.scales.slot_bytes;
    let load = Load::new(&report.model, &plan, 1_000_000_000);
    let unmeasured = Speeds::new(&rates(None, None));
    let more = load.more_ram(&plan, &unmeasured).unwrap();
    assert_eq!((more.bytes, more.slots), (10 * plan.scales.slot_bytes, plan.sizes.experts_total));
    assert!(load.more_ram(&plan, &Speeds::new(&rates(Some(1e15), Some(1e6)))).is_none(), "memory is the limit");
    // With everything cached no disk is needed.
    let load = Load::new(&report.model, &report.plan, 1_000_000_000);
    let cached = load.per_token(1.0);
    assert_eq!((cached.read_low, cached.read_high), (0, 0));
    assert!(Speeds::new(&rates(None, Some(40e9))).decode(&cached).is_some());
    // A chunk of one token reads what one token reads.
    let single = speeds.prefill(&load, 0.0, 1).read_bytes_per_token;
    assert!(single.abs_diff(load.per_token(0.0).read_high) < 2, "{single}");
    let chunk = speeds.prefill(&load, 0.0, 256);
    assert!(chunk.read_bytes_per_token < single / 7 && chunk.tokens_per_second_high.is_some());
}

#[test]
fn a_small_model_that_is_here_fits_and_is_measured_on_request() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/oracle/glm_tiny");
    let cold = plan(&path, &EngineConfig::default(), PlanProbe::default()).unwrap();
    assert!(cold.fits && cold.runs && !cold.remote && cold.more_ram.is_none() && cold.tokens_per_second.is_none());
    assert_eq!((cold.bottleneck.resource, cold.per_token.read_high), ("memory", 0));
    assert!(cold.rates.disk.basis.contains("not needed"), "{}", cold.rates.disk.basis);
    let need = cold.conversion.clone().unwrap();
    assert_eq!(need.source_bytes, cold.model.container_bytes);
    let nowhere = tempfile::tempdir().unwrap();
    let dry = Conversion::dry_run(&path, &nowhere.path().join("out"), &ConvertOptions::default()).unwrap();
    assert_eq!(need.container_bytes, dry.bytes, "conversion is sized by its own layout");
    let needed = dry.space.unwrap().needed;
    assert_eq!((need.disk_bytes_streaming, need.disk_bytes_keeping_source), (needed, needed), "the source is here");
    let measured = plan(&path, &EngineConfig::default(), PlanProbe { measure: true }).unwrap();
    assert!(measured.tokens_per_second.is_some_and(|range| range.low > 0.0 && range.low <= range.high));
    let (_, loaded) = crate::Model::plan(&path, &EngineConfig::default()).unwrap();
    assert_eq!(loaded.sizes, cold.plan.sizes);
}

#[test]
fn a_disk_is_measured_when_experts_come_from_it() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/oracle/glm_tiny");
    let config = EngineConfig {
        slots: Some(4),
        io: colibri_store::IoRequest::Kind(SourceKind::Buffered),
        ..EngineConfig::default()
    };
    let report = plan(&path, &config, PlanProbe { measure: true }).unwrap();
    let rate = report.rates.disk.bytes_per_second.unwrap_or_else(|| panic!("{}", report.rates.disk.basis));
    assert!(rate > 0.0 && report.rates.disk.kind.is_some() && report.per_token.read_high > 0);
    assert!(report.more_ram.is_some_and(|more| more.slots == report.plan.sizes.experts_total));
}

/// The listing that the hub would give of a folder.
fn listed(folder: &Path) -> (Map<String, Value>, RemoteListing) {
    let read = |name: &str| std::fs::read(folder.join(name)).ok().map(|text| serde_json::from_slice(&text).unwrap());
    let files = std::fs::read_dir(folder).unwrap().map(|entry| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len())
    });
    let index: Option<Value> = read("model.safetensors.index.json");
    let listing = RemoteListing {
        files: files.collect(),
        weight_map: index.as_ref().map(|index| serde_json::from_value(index["weight_map"].clone()).unwrap()),
        total_size: index.as_ref().and_then(|index| index["metadata"]["total_size"].as_u64()),
        manifest: read("colibri.json"),
        ..RemoteListing::default()
    };
    let config: Value = read("config.json").unwrap();
    (config.as_object().unwrap().clone(), listing)
}

#[test]
fn a_model_is_planned_alike_from_afar_and_from_its_headers() {
    let checkpoint = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/oracle/glm_sparse");
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("out");
    let written = crate::convert::convert(&checkpoint, &out, &ConvertOptions::default(), &crate::NoWatch).unwrap();
    let near = |path: &Path| plan(path, &EngineConfig::default(), PlanProbe::default()).unwrap();
    let afar = |path: &Path| {
        let (config, listing) = listed(path);
        plan_remote(&config, &listing, &EngineConfig::default()).unwrap()
    };
    let (here, there) = (near(&checkpoint).conversion.unwrap(), afar(&checkpoint).conversion.unwrap());
    assert_eq!((here.container_bytes, there.container_bytes), (written.bytes, written.bytes));
    assert_eq!(here.formats, there.formats);
    let (here, there) = (near(&out), afar(&out));
    assert_eq!(here.model.formats, there.model.formats);
    assert_eq!(here.model.formats.dense, ["q4g64", "q8"], "the prediction layer is dense too");
    assert_eq!(here.model.container_bytes, there.model.container_bytes);
}
