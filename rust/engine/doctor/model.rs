//! The checks of a model's folder: files, headers, tensors, the disk's rate, the payload.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use colibri_store::budget::ModelSizes;
use colibri_store::catalog::Catalog;
use colibri_store::error::{StoreError, grouped, human_bytes};
use colibri_store::machine::MachineFacts;

use super::{Check, DoctorOptions, Line, Status, payload};
use crate::blueprint::Blueprint;
use crate::config::Watch;
use crate::error::EngineError;
use crate::model::{blueprint_of, sizes, threads};
use crate::names::TensorSlot;
use crate::plan::{DiskRate, measured_disk};
use crate::weights::{locate, place, resident_bytes};

const FILES: &str = "model.files";
const HEADERS: &str = "model.headers";
const TENSORS: &str = "model.tensors";
const STORAGE: &str = "storage.read";

/// Below this rate a disk that experts come from is named slow, in bytes per second: hard disks, USB bridges and SATA
/// drives stay below it, every NVMe drive lies above.
const SLOW: f64 = 1e9;

/// The verdicts on a model, and its sizes where they are known.
pub(super) struct Examined {
    pub(super) checks: Vec<Check>,
    pub(super) sizes: Option<ModelSizes>,
}

/// Checks the model in the folder `path`.
pub(super) fn examine(
    path: &Path,
    options: &DoctorOptions,
    machine: &MachineFacts,
    watch: &dyn Watch,
) -> Result<Examined, EngineError> {
    let (catalog, errors) = match Catalog::examine(path) {
        Ok(examined) => examined,
        Err(error) => return Ok(Examined { checks: unreadable(error), sizes: None }),
    };
    let lines: Vec<Line> = errors.iter().flat_map(Line::of).collect();
    let (missing, wrong): (Vec<_>, Vec<_>) = lines.into_iter().partition(|line| line.missing);
    let mut checks = vec![files(&catalog, missing), headers(&catalog, wrong)];
    let (tensors, sizes) = tensors(path, &catalog, options, machine);
    checks.push(tensors);
    let rate = measure(&catalog, sizes.as_ref());
    checks.push(storage(&rate, sizes.as_ref(), machine));
    checks.push(payload::check(&catalog, options.deep, rate.bytes_per_second, watch)?);
    Ok(Examined { checks, sizes })
}

/// No model, or no list of its files: one failure, and nothing else to look at.
fn unreadable(error: StoreError) -> Vec<Check> {
    let failed = Check::failed(FILES, &error.into(), "give the folder of a model");
    let rest = [HEADERS, TENSORS, STORAGE, payload::ID].into_iter().map(|id| {
        let text = "not checked: there is no list of weight files".to_owned();
        Check::new(id, Status::Skip, text, format!("mend {FILES} first"))
    });
    std::iter::once(failed.clone()).chain(rest).collect()
}

/// Every file that should be there is there.
fn files(catalog: &Catalog, missing: Vec<Line>) -> Check {
    if !missing.is_empty() {
        return Check::faulty(FILES, missing, "fetch what is missing: colibri pull resumes");
    }
    let authority = if catalog.manifest().is_some() { ", all that colibri.json lists" } else { "" };
    let unreadable = catalog.unreadable().len();
    let count = catalog.files().len() + unreadable;
    let size = match unreadable {
        0 => human_bytes(catalog.total_bytes()),
        broken => format!("{} and {broken} that cannot be read", human_bytes(catalog.total_bytes())),
    };
    let plural = if count == 1 { "" } else { "s" };
    Check::ok(FILES, format!("{} weight file{plural}, {size}{authority}", grouped(count as u64)))
}

/// Every header is whole, and what they say agrees.
fn headers(catalog: &Catalog, wrong: Vec<Line>) -> Check {
    if !wrong.is_empty() {
        return Check::faulty(HEADERS, wrong, "fetch or convert those files again");
    }
    let count = grouped(catalog.tensors().len() as u64);
    Check::ok(HEADERS, format!("{count} tensors: names, shapes, types, offsets"))
}

/// Every tensor that the configuration asks for is there, with the right shape, in a format that is read.
fn tensors(
    path: &Path,
    catalog: &Catalog,
    options: &DoctorOptions,
    machine: &MachineFacts,
) -> (Check, Option<ModelSizes>) {
    let (blueprint, absent) = match blueprint_of(path, catalog) {
        Ok(found) => found,
        Err(error) => return (Check::failed(TENSORS, &error, "fetch config.json again"), None),
    };
    let slots = blueprint.slots();
    let (found, errors) = locate(catalog, slots.clone());
    if !errors.is_empty() {
        return (lacking(&slots, &errors), None);
    }
    let sizes = measured_sizes(&blueprint, catalog, options, machine);
    let (sizes, refused) = match sizes {
        Ok(sizes) => (Some(sizes), None),
        Err(error) => (None, Some(error)),
    };
    if let Some(error) = refused {
        return (Check::failed(TENSORS, &error, "convert the checkpoint"), None);
    }
    let mut text =
        format!("{} tensors of {} as the configuration has them", grouped(found.len() as u64), blueprint.family());
    if !absent.is_empty() {
        text.push_str(&format!("; without {}", absent.join(", ")));
    }
    if blueprint.runs() {
        return (Check::ok(TENSORS, text), sizes);
    }
    let refusal = blueprint.not_run(path);
    text.push_str(&format!("; {refusal}"));
    let fix = refusal.why().unwrap_or_default();
    (Check::new(TENSORS, Status::Warn, text, fix), sizes)
}

/// The sizes that memory is planned with; refuses what cannot be run as it lies there.
fn measured_sizes(
    blueprint: &Blueprint,
    catalog: &Catalog,
    options: &DoctorOptions,
    machine: &MachineFacts,
) -> Result<ModelSizes, EngineError> {
    let placement = place(catalog, blueprint.slots())?;
    let (resident, bytes) = (resident_bytes(&placement.resident), catalog.total_bytes());
    let threads = threads(&options.engine, machine);
    Ok(sizes(blueprint, resident, &placement.experts, bytes, &options.engine, threads))
}

/// The tensors that are missing or wrong, and the layers that they belong to.
fn lacking(slots: &[TensorSlot], errors: &[StoreError]) -> Check {
    let layers: HashMap<&str, Option<usize>> = slots.iter().map(|slot| (slot.name.as_str(), slot.layer)).collect();
    let lines: Vec<Line> = errors.iter().flat_map(Line::of).collect();
    let missing: Vec<&str> =
        lines.iter().filter(|line| line.missing).filter_map(|line| line.tensor.as_deref()).collect();
    let of_layers: BTreeSet<usize> = missing.iter().filter_map(|name| layers.get(name).copied().flatten()).collect();
    let count = missing.len() as u64;
    let summary = (count > 0).then(|| {
        let place = if of_layers.is_empty() {
            "outside of the layers".to_owned()
        } else {
            format!("layers {}", ranges(&of_layers))
        };
        let verb = if count == 1 { "tensor is" } else { "tensors are" };
        format!("{} {verb} missing: {place}", grouped(count))
    });
    let mut check = Check::faulty(TENSORS, lines, "fetch the missing shards, or convert the checkpoint again");
    if let Some(summary) = summary {
        check.text = format!("{summary}; {}", check.text);
        check.details.insert(0, summary);
    }
    check
}

/// `5-9, 47`.
fn ranges(numbers: &BTreeSet<usize>) -> String {
    let sorted: Vec<usize> = numbers.iter().copied().collect();
    let runs = sorted.chunk_by(|left, right| left + 1 == *right).filter_map(|run| match (run.first(), run.last()) {
        (Some(first), Some(last)) if first == last => Some(first.to_string()),
        (Some(first), Some(last)) => Some(format!("{first}-{last}")),
        _ => None,
    });
    runs.collect::<Vec<_>>().join(", ")
}

/// The rate of random reads of an expert's size.
fn measure(catalog: &Catalog, sizes: Option<&ModelSizes>) -> DiskRate {
    measured_disk(catalog.files(), sizes.map_or(0, |sizes| sizes.slot_bytes))
}

/// Whether the disk is fast enough for experts that come from it.
fn storage(rate: &DiskRate, sizes: Option<&ModelSizes>, machine: &MachineFacts) -> Check {
    let Some(bytes) = rate.bytes_per_second else {
        let text = format!("the rate {}", rate.basis);
        let fix = "check the drive (dmesg | tail; smartctl -a) and that the files can be read by this user";
        return Check::new(STORAGE, Status::Fail, text, fix.to_owned());
    };
    let text = format!("{:.2} GB/s ({})", bytes / 1e9, rate.basis);
    let streams = sizes.is_some_and(|sizes| machine.room().is_none_or(|room| sizes.container_bytes > room));
    match sizes {
        Some(sizes) if streams && bytes < SLOW => {
            let expert = sizes.slot_bytes as f64 / bytes * 1000.0;
            let text = format!("{text}: slow for a model that streams from disk; an expert takes {expert:.0} ms");
            let fix = "move the model to an internal NVMe drive: above 1 GB/s the disk counts as fast enough";
            Check::new(STORAGE, Status::Warn, text, fix.to_owned())
        }
        Some(_) if !streams => {
            Check::ok(STORAGE, format!("{text}; the model fits in memory, so this counts only when it is opened"))
        }
        _ => Check::ok(STORAGE, text),
    }
}

#[cfg(test)]
mod tests {
    use colibri_store::source::SourceKind;

    use super::*;

    #[test]
    fn numbers_are_shown_as_ranges() {
        let set = |list: &[usize]| ranges(&list.iter().copied().collect());
        assert_eq!(set(&[5, 6, 7, 8, 9, 47, 49, 50]), "5-9, 47, 49-50");
        assert_eq!(set(&[]), "");
    }

    #[test]
    fn a_slow_disk_is_a_warning_only_where_experts_come_from_it() {
        let rate = |rate: Option<f64>| DiskRate {
            bytes_per_second: rate,
            kind: Some(SourceKind::Direct),
            basis: "could not be measured: EIO (Input/output error)".to_owned(),
        };
        let machine = MachineFacts { memory_available: Some(16_000_000_000), ..colibri_store::machine::probe() };
        let large = ModelSizes { container_bytes: 372_000_000_000, slot_bytes: 21_233_664, ..ModelSizes::default() };
        let small = ModelSizes { container_bytes: 1_000_000, ..large.clone() };
        let status = |bytes, sizes| storage(&rate(bytes), Some(sizes), &machine);
        let slow = status(Some(0.41e9), &large);
        assert!(slow.status == Status::Warn && slow.fix.is_some(), "{slow:?}");
        assert!(slow.text.contains("0.41 GB/s") && slow.text.contains("52 ms"), "{slow:?}");
        assert_eq!(status(Some(5.9e9), &large).status, Status::Ok);
        assert_eq!(status(Some(0.41e9), &small).status, Status::Ok);
        let broken = status(None, &large);
        assert!(broken.status == Status::Fail && broken.text.contains("Input/output error"), "{broken:?}");
        assert!(broken.fix.is_some_and(|fix| fix.contains("smartctl")));
    }
}
