//! What the machine has: memory, control-group limits, cores, page size. The one place that asks the system.
//!
//! A probe that fails or answers zero is `None`, never 0: a machine without memory does not run this program, and a zero
//! taken for a fact would size the cache to nothing. Parsing is pure and separate from the reading of files, so that it
//! is tested on sample texts. On systems without `/proc` the facts are mostly unknown.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// The facts that memory and threads are planned with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MachineFacts {
    /// Memory that can be had without swapping, in bytes (`MemAvailable`).
    pub memory_available: Option<u64>,
    /// All memory, in bytes.
    pub memory_total: Option<u64>,
    /// The tightest control-group limit above this process, in bytes.
    pub cgroup_limit: Option<u64>,
    /// What that control group uses and cannot give back, in bytes.
    pub cgroup_used: Option<u64>,
    /// Physical cores of the machine.
    pub cores_physical: Option<usize>,
    /// Physical cores this process may use: affinity and the control group's CPU quota taken into account. At least 1.
    pub cores_allowed: usize,
    /// Size of a memory page in bytes.
    pub page_size: Option<u64>,
    /// Swap in use, in bytes; `None` when unknown, 0 when none is used.
    pub swap_used: Option<u64>,
    /// The processor's name for people.
    pub cpu_name: Option<String>,
}

impl MachineFacts {
    /// Memory that this process can still take: the lesser of what the machine and the control group have left.
    pub fn room(&self) -> Option<u64> {
        let group = self.cgroup_limit.map(|limit| limit.saturating_sub(self.cgroup_used.unwrap_or(0)));
        match (self.memory_available, group) {
            (Some(machine), Some(group)) => Some(machine.min(group)),
            (one, other) => one.or(other),
        }
    }

    /// All memory this process could ever take: the lesser of the machine's memory and the control group's limit.
    pub fn capacity(&self) -> Option<u64> {
        match (self.memory_total, self.cgroup_limit) {
            (Some(machine), Some(group)) => Some(machine.min(group)),
            (one, other) => one.or(other),
        }
    }
}

/// Asks the system.
pub fn probe() -> MachineFacts {
    probe_under(Path::new("/"))
}

/// Asks the `proc` and `sys` trees under `root`.
fn probe_under(root: &Path) -> MachineFacts {
    let text = |name: &str| std::fs::read_to_string(root.join(name)).ok();
    let memory = text("proc/meminfo").unwrap_or_default();
    let groups = text("proc/self/cgroup").unwrap_or_default();
    let (cgroup_limit, cgroup_used) = memory_limit(root, &groups);
    let allowed = text("proc/self/status").as_deref().and_then(allowed_cpus);
    let processors = text("proc/cpuinfo").unwrap_or_default();
    let within = physical_cores(root, &processors, allowed.as_ref());
    let quota = cpu_quota(root, &groups);
    let fallback = || std::thread::available_parallelism().map_or(1, usize::from);
    let cores = within.unwrap_or_else(fallback).min(quota.unwrap_or(usize::MAX)).max(1);
    MachineFacts {
        memory_available: meminfo(&memory, "MemAvailable").filter(|bytes| *bytes > 0),
        memory_total: meminfo(&memory, "MemTotal").filter(|bytes| *bytes > 0),
        cgroup_limit,
        cgroup_used,
        cores_physical: physical_cores(root, &processors, None),
        cores_allowed: cores,
        page_size: std::fs::read(root.join("proc/self/auxv")).ok().as_deref().and_then(page_size),
        swap_used: meminfo(&memory, "SwapTotal")
            .and_then(|total| Some(total.saturating_sub(meminfo(&memory, "SwapFree")?))),
        cpu_name: cpu_name(&processors),
    }
}

/// A line of `/proc/meminfo` in bytes.
fn meminfo(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let mut words = value.split_whitespace();
    let count: u64 = words.next()?.parse().ok()?;
    match words.next() {
        Some("kB") => count.checked_mul(1024),
        None => Some(count),
        Some(_) => None,
    }
}

/// One hierarchy of control groups: where it is mounted and how its files are called.
struct GroupFiles {
    /// The controllers field of the line in `/proc/self/cgroup`; empty for the unified hierarchy.
    controller: &'static str,
    /// Where the hierarchy may be mounted.
    mounts: &'static [&'static str],
    limit: &'static str,
    used: &'static str,
    /// The entry of `memory.stat` that counts cache which is given back under pressure.
    reclaimable: &'static str,
}

const MEMORY_GROUPS: [GroupFiles; 2] = [
    GroupFiles {
        controller: "",
        mounts: &["sys/fs/cgroup", "sys/fs/cgroup/unified"],
        limit: "memory.max",
        used: "memory.current",
        reclaimable: "inactive_file",
    },
    GroupFiles {
        controller: "memory",
        mounts: &["sys/fs/cgroup/memory"],
        limit: "memory.limit_in_bytes",
        used: "memory.usage_in_bytes",
        reclaimable: "total_inactive_file",
    },
];

/// A limit of this size or more is the system's way of saying none.
const NO_LIMIT: u64 = 1 << 60;

/// The tightest memory limit on the way from this process's control group to the root, with its use.
fn memory_limit(root: &Path, groups: &str) -> (Option<u64>, Option<u64>) {
    let mut tightest: Option<(u64, Option<u64>)> = None;
    for files in &MEMORY_GROUPS {
        for directory in group_directories(root, groups, files.controller, files.mounts) {
            let number = |name: &str| parse_limit(&std::fs::read_to_string(directory.join(name)).ok()?);
            let Some(limit) = number(files.limit) else { continue };
            let cache = std::fs::read_to_string(directory.join("memory.stat"))
                .ok()
                .and_then(|text| stat_entry(&text, files.reclaimable))
                .unwrap_or(0);
            let used = number(files.used).map(|used| used.saturating_sub(cache));
            let room = |limit: u64, used: Option<u64>| limit.saturating_sub(used.unwrap_or(0));
            if tightest.is_none_or(|(other, other_used)| room(limit, used) < room(other, other_used)) {
                tightest = Some((limit, used));
            }
        }
    }
    tightest.map_or((None, None), |(limit, used)| (Some(limit), used))
}

/// The directories of this process's control group and of all above it, as far as they are visible.
fn group_directories(root: &Path, groups: &str, controller: &str, mounts: &[&str]) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let Some(path) = group_path(groups, controller) else { return all };
    for mount in mounts {
        let mount = root.join(mount);
        // In a namespace the path may lead above the mount; what is visible then is the mount itself.
        let inside = if path.contains("..") { "" } else { path.trim_start_matches('/') };
        let mut directory = mount.join(inside);
        if !directory.is_dir() {
            directory.clone_from(&mount);
        }
        while directory.starts_with(&mount) {
            all.push(directory.clone());
            if !directory.pop() {
                break;
            }
        }
    }
    all
}

/// The path of a controller in `/proc/self/cgroup`; the empty name is the unified hierarchy.
fn group_path<'a>(groups: &'a str, controller: &str) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, names, path) = (fields.next()?, fields.next()?, fields.next()?);
        let found =
            if controller.is_empty() { names.is_empty() } else { names.split(',').any(|name| name == controller) };
        found.then_some(path)
    })
}

/// `max` is no limit; neither are the huge numbers of the older hierarchy, nor zero.
fn parse_limit(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|limit| (1..NO_LIMIT).contains(limit))
}

/// An entry of `memory.stat`.
fn stat_entry(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// The cores that the CPU quotas on the way to the root leave; at least 1.
fn cpu_quota(root: &Path, groups: &str) -> Option<usize> {
    let unified = group_directories(root, groups, "", MEMORY_GROUPS[0].mounts);
    let unified = unified.iter().filter_map(|directory| {
        let text = std::fs::read_to_string(directory.join("cpu.max")).ok()?;
        let (quota, period) = text.trim().split_once(' ')?;
        quota_cores(quota, period)
    });
    let older = group_directories(root, groups, "cpu", &["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"]);
    let older = older.iter().filter_map(|directory| {
        let read = |name: &str| std::fs::read_to_string(directory.join(name)).ok();
        quota_cores(read("cpu.cfs_quota_us")?.trim(), read("cpu.cfs_period_us")?.trim())
    });
    unified.chain(older).min()
}

/// Whole cores of a quota and its period; `max` and -1 are no limit. A started core counts only as the first.
fn quota_cores(quota: &str, period: &str) -> Option<usize> {
    let (quota, period): (u64, u64) = (quota.parse().ok()?, period.parse().ok()?);
    usize::try_from(quota.checked_div(period)?).ok().map(|cores| cores.max(1))
}

/// The processors that the scheduler gives this process, from `/proc/self/status`.
fn allowed_cpus(status: &str) -> Option<BTreeSet<usize>> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    cpu_list(list.trim())
}

/// A list such as `0-3,8`.
fn cpu_list(text: &str) -> Option<BTreeSet<usize>> {
    /// More processors than any system has; guards against a range without end.
    const MOST: usize = 1 << 16;
    let mut all = BTreeSet::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last >= MOST {
            return None;
        }
        all.extend(first..=last);
    }
    (!all.is_empty()).then_some(all)
}

/// Physical cores among the allowed processors: by the topology files, else by the fields of `/proc/cpuinfo`.
fn physical_cores(root: &Path, processors: &str, allowed: Option<&BTreeSet<usize>>) -> Option<usize> {
    let online = std::fs::read_to_string(root.join("sys/devices/system/cpu/online")).ok();
    let online = online.as_deref().and_then(|text| cpu_list(text.trim()));
    if let Some(online) = online {
        let siblings = |cpu: usize| {
            let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            std::fs::read_to_string(root.join(path)).ok().map(|text| text.trim().to_owned())
        };
        let usable = online.iter().filter(|cpu| allowed.is_none_or(|allowed| allowed.contains(cpu)));
        let cores: Option<BTreeSet<String>> = usable.map(|cpu| siblings(*cpu)).collect();
        if let Some(cores) = cores.filter(|cores| !cores.is_empty()) {
            return Some(cores.len());
        }
    }
    let cores: BTreeSet<(usize, usize)> = processors
        .split("\n\n")
        .filter_map(|block| {
            let field = |key: &str| cpuinfo_field(block, key)?.parse::<usize>().ok();
            let processor = field("processor")?;
            let usable = allowed.is_none_or(|allowed| allowed.contains(&processor));
            // Without topology fields every processor is taken for a core.
            usable.then(|| (field("physical id").unwrap_or(0), field("core id").unwrap_or(processor)))
        })
        .collect();
    (!cores.is_empty()).then_some(cores.len())
}

/// A field of a block of `/proc/cpuinfo`.
fn cpuinfo_field<'a>(block: &'a str, key: &str) -> Option<&'a str> {
    block.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim())
    })
}

/// The processor's name.
fn cpu_name(processors: &str) -> Option<String> {
    let keys = ["model name", "Model", "Hardware"];
    keys.iter().find_map(|key| cpuinfo_field(processors, key)).filter(|name| !name.is_empty()).map(str::to_owned)
}

/// The page size in the vector that the kernel hands to a process: pairs of machine words, key 6.
fn page_size(vector: &[u8]) -> Option<u64> {
    const PAGE_SIZE_KEY: usize = 6;
    const WORD: usize = size_of::<usize>();
    let word = |bytes: &[u8]| bytes.try_into().ok().map(usize::from_ne_bytes);
    vector
        .chunks_exact(2 * WORD)
        .find(|pair| word(&pair[..WORD]) == Some(PAGE_SIZE_KEY))
        .and_then(|pair| word(&pair[WORD..]))
        .map(|size| size as u64)
        .filter(|size| size.is_power_of_two())
}

#[cfg(test)]
mod tests;
