//! The peak of a run is what its plan says, whatever becomes of the experts' scales.
//!
//! Each run has a process of its own: the peak is a fact of the process, and what an allocator keeps of earlier work would
//! count as there before and serve the run. The model is small, so that the bound is one of bytes: what a process needs
//! beside a model does not grow with it.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking and shows what it measured")]

use std::fs;
use std::path::Path;
use std::process::Command;

use colibri::engine::convert::{ConvertOptions, convert};
use colibri::engine::fixture::{Fixture, SplitMix64};
use colibri::engine::{EngineConfig, Model, NoWatch};
use colibri::kernels::{Format, ScaleRule};
use colibri::store::budget::ScaleMode;
use colibri::store::{ContextRequest, IoRequest, RamLimit, SourceKind};
use serde_json::{Value, json};

mod published;

use published::{Layout, publish};

/// What the process may take beside the plan, and what of the plan it may leave untouched, in bytes.
const SLACK: u64 = 8 << 20;
/// Memory in which all experts have room.
const ROOMY: u64 = 1 << 30;

/// A line of `/proc/self/status`, in bytes.
fn status(key: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

fn config(ram: RamLimit) -> EngineConfig {
    EngineConfig {
        ram,
        context: ContextRequest::Tokens(512),
        threads: Some(2),
        io: IoRequest::Kind(SourceKind::Direct),
        prefill_chunk: Some(64),
        ..EngineConfig::default()
    }
}

/// Writes down the most memory that opening the model and running it adds to this process, and the model's plan.
#[test]
#[ignore = "run by the test of the peak, in a process of its own"]
fn inside_a_run() {
    let here = std::env::current_dir().unwrap();
    let Ok(text) = fs::read_to_string(here.join("ram")) else { return };
    let config = config(RamLimit::Bytes(text.parse().unwrap()));
    let mut random = SplitMix64 { state: 5 };
    let tokens: Vec<u32> = (0..200).map(|_| random.token(fixture().vocab)).collect();
    // Makes the present use the peak so far.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let (before, code) = (status("VmRSS"), status("RssFile"));
    let model = Model::open(&here.join("published"), &config, &NoWatch).unwrap();
    let mut session = model.session();
    session.extend(&tokens, &NoWatch).unwrap();
    // Pages of the program itself are no part of a plan; nothing else of files is mapped here.
    let code = status("RssFile").saturating_sub(code);
    let measured = status("VmHWM").saturating_sub(before + code);
    let outcome = json!({ "measured": measured, "plan": model.memory_plan() });
    fs::write(here.join("outcome"), outcome.to_string()).unwrap();
}

/// The peak of a run with this much memory, and its plan.
fn peak(folder: &Path, ram: u64) -> (u64, Value) {
    fs::write(folder.join("ram"), ram.to_string()).unwrap();
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "inside_a_run"])
        .current_dir(folder)
        .status()
        .unwrap();
    assert!(status.success());
    let mut outcome: Value = serde_json::from_slice(&fs::read(folder.join("outcome")).unwrap()).unwrap();
    (outcome["measured"].as_u64().unwrap(), outcome["plan"].take())
}

fn fixture() -> Fixture {
    Fixture {
        layers: 3,
        hidden: 512,
        expert_width: 512,
        dense_width: 512,
        experts: 48,
        query_rank: 128,
        latent_rank: 128,
        bf16: true,
        mtp: false,
        ..Fixture::default()
    }
}

#[test]
fn ms_03_the_measured_peak_is_the_planned_one() {
    let folder = tempfile::tempdir().unwrap();
    let [checkpoint, ours, path] = ["checkpoint", "ours", "published"].map(|name| folder.path().join(name));
    fs::create_dir(&checkpoint).unwrap();
    fs::create_dir(&path).unwrap();
    fixture().write(&checkpoint).unwrap();
    let (experts, dense, scale_rule) = (Format::Q4G64, Format::Q4G64, ScaleRule::AbsMax);
    let options = ConvertOptions { experts, dense, scale_rule, ..ConvertOptions::default() };
    convert(&checkpoint, &ours, &options, &NoWatch).unwrap();
    publish(&ours, &path, Layout { shift: 0, scales_apart: false });
    let (_, roomy) = Model::plan(&path, &config(RamLimit::Bytes(ROOMY))).unwrap();
    assert_eq!(roomy.scales.mode, ScaleMode::Resident);
    let fixed = roomy.projected_peak - roomy.cache_bytes - roomy.scales.resident_bytes;
    // Room for less than four times the scales.
    let tight = fixed + 3 * roomy.scales.resident_bytes;
    for (ram, mode) in [(ROOMY, ScaleMode::Resident), (tight, ScaleMode::WithEachMiss)] {
        let (measured, plan) = peak(folder.path(), ram);
        assert_eq!(plan["scales"]["mode"], json!(mode));
        let projected = plan["projected_peak"].as_u64().unwrap();
        assert!(measured <= projected + SLACK && projected <= measured + SLACK, "{measured} of {projected}: {plan}");
        println!("{measured} of {projected} bytes");
    }
}
