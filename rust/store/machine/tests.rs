//! Probes on sample trees, as different systems show them.

use super::*;

/// A tree of files under a fresh directory.
fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    directory
}

const MEMINFO: &str = "MemTotal:       32791080 kB\nMemFree:         1000 kB\nMemAvailable:   26000000 kB\n\
                       SwapTotal:       8000000 kB\nSwapFree:        7000000 kB\n";

const CPUINFO: &str = "processor\t: 0\nmodel name\t: AMD Ryzen 7 5800X\nphysical id\t: 0\ncore id\t: 0\n\n\
                       processor\t: 1\nmodel name\t: AMD Ryzen 7 5800X\nphysical id\t: 0\ncore id\t: 1\n\n\
                       processor\t: 2\nmodel name\t: AMD Ryzen 7 5800X\nphysical id\t: 0\ncore id\t: 0\n\n\
                       processor\t: 3\nmodel name\t: AMD Ryzen 7 5800X\nphysical id\t: 0\ncore id\t: 1\n";

#[test]
fn a_plain_machine() {
    let root = tree(&[
        ("proc/meminfo", MEMINFO),
        ("proc/cpuinfo", CPUINFO),
        ("proc/self/cgroup", "0::/user.slice\n"),
        ("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-3\n"),
    ]);
    let facts = probe_under(root.path());
    assert_eq!(facts.memory_total, Some(32_791_080 * 1024));
    assert_eq!(facts.memory_available, Some(26_000_000 * 1024));
    assert_eq!(facts.swap_used, Some(1_000_000 * 1024));
    assert_eq!((facts.cgroup_limit, facts.cgroup_used), (None, None));
    assert_eq!((facts.cores_physical, facts.cores_allowed), (Some(2), 2));
    assert_eq!(facts.cpu_name.as_deref(), Some("AMD Ryzen 7 5800X"));
    assert_eq!(facts.room(), facts.memory_available);
}

#[test]
fn a_limit_above_the_own_group_counts_and_cache_does_not() {
    let root = tree(&[
        ("proc/meminfo", MEMINFO),
        ("proc/cpuinfo", CPUINFO),
        ("proc/self/cgroup", "0::/slice/box/leaf\n"),
        ("proc/self/status", "Cpus_allowed_list:\t0,2\n"),
        ("sys/fs/cgroup/slice/memory.max", "8000000000\n"),
        ("sys/fs/cgroup/slice/memory.current", "5000000000\n"),
        ("sys/fs/cgroup/slice/memory.stat", "anon 1\ninactive_file 3000000000\n"),
        ("sys/fs/cgroup/slice/box/memory.max", "max\n"),
        ("sys/fs/cgroup/slice/box/cpu.max", "150000 100000\n"),
        ("sys/fs/cgroup/slice/box/leaf/memory.max", "7000000000\n"),
        ("sys/fs/cgroup/slice/box/leaf/memory.current", "100\n"),
        ("sys/fs/cgroup/slice/box/leaf/cpu.max", "max 100000\n"),
    ]);
    let facts = probe_under(root.path());
    assert_eq!((facts.cgroup_limit, facts.cgroup_used), (Some(8_000_000_000), Some(2_000_000_000)));
    assert_eq!(facts.room(), Some(6_000_000_000));
    assert_eq!(facts.capacity(), Some(8_000_000_000));
    // Processors 0 and 2 are one core; the quota of 1.5 would allow one as well.
    assert_eq!((facts.cores_physical, facts.cores_allowed), (Some(2), 1));
}

#[test]
fn a_container_that_sees_its_group_as_the_root() {
    let root = tree(&[
        ("proc/meminfo", MEMINFO),
        ("proc/self/cgroup", "0::/../../other\n"),
        ("sys/fs/cgroup/memory.max", "2000000000\n"),
        ("sys/fs/cgroup/memory.current", "500000000\n"),
    ]);
    assert_eq!(probe_under(root.path()).room(), Some(1_500_000_000));
}

#[test]
fn the_older_hierarchy() {
    let root = tree(&[
        ("proc/meminfo", MEMINFO),
        ("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a/b\n0::/\n"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4000000000\n"),
        ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1000000000\n"),
        ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n"),
        ("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "300000\n"),
        ("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n"),
        ("proc/cpuinfo", "processor: 0\n\nprocessor: 1\n\nprocessor: 2\n\nprocessor: 3\n"),
    ]);
    let facts = probe_under(root.path());
    assert_eq!((facts.cgroup_limit, facts.room()), (Some(4_000_000_000), Some(3_000_000_000)));
    assert_eq!((facts.cores_physical, facts.cores_allowed), (Some(4), 3));
}

#[test]
fn topology_files_win_over_cpuinfo() {
    let root = tree(&[
        ("sys/devices/system/cpu/online", "0-3\n"),
        ("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0-1\n"),
        ("sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "0-1\n"),
        ("sys/devices/system/cpu/cpu2/topology/thread_siblings_list", "2-3\n"),
        ("sys/devices/system/cpu/cpu3/topology/thread_siblings_list", "2-3\n"),
        ("proc/cpuinfo", "processor: 0\n\nprocessor: 1\n\nprocessor: 2\n\nprocessor: 3\n"),
    ]);
    assert_eq!(probe_under(root.path()).cores_physical, Some(2));
}

#[test]
fn ms_01_probes_that_fail_or_answer_zero_are_unknown() {
    let empty = probe_under(tree(&[]).path());
    assert_eq!((empty.memory_available, empty.memory_total, empty.room()), (None, None, None));
    assert_eq!((empty.cgroup_limit, empty.cores_physical, empty.page_size, empty.swap_used), (None, None, None, None));
    assert!(empty.cores_allowed >= 1);
    let zero = probe_under(tree(&[("proc/meminfo", "MemTotal: 0 kB\nMemAvailable: 0 kB\n")]).path());
    assert_eq!((zero.memory_available, zero.memory_total, zero.capacity()), (None, None, None));
    for text in ["MemAvailable:", "MemAvailable: x kB", "MemAvailable: 5 MB", "MemAvailable: 99999999999999999999 kB"] {
        assert_eq!(meminfo(text, "MemAvailable"), None, "{text}");
    }
}

#[test]
fn lists_quotas_and_limits() {
    assert_eq!(cpu_list("0-2,5"), Some(BTreeSet::from([0, 1, 2, 5])));
    for text in ["", "x", "0-", "0-99999999999", "0-70000"] {
        assert_eq!(cpu_list(text), None, "{text}");
    }
    assert_eq!(quota_cores("50000", "100000"), Some(1));
    assert_eq!(quota_cores("max", "100000"), None);
    assert_eq!(quota_cores("-1", "100000"), None);
    assert_eq!(quota_cores("100000", "0"), None);
    assert_eq!(parse_limit("max"), None);
    assert_eq!(parse_limit("0"), None);
    assert_eq!(page_size(&[]), None);
}

#[cfg(target_os = "linux")]
#[test]
fn the_machine_of_this_test_is_known() {
    let facts = probe();
    assert!(facts.memory_available > Some(1 << 20) && facts.memory_total >= facts.memory_available);
    assert!(facts.cores_allowed >= 1 && facts.cores_physical >= Some(1));
    assert!(facts.page_size.is_some_and(|size| size >= 4096));
}
