//! The memory limit of the process.

use std::fs;
use std::path::{Component, Path};

/// Returns the bytes of memory that this process may use: the machine's memory, or the lowest limit
/// of its control groups (`memory.max`, and `memory.limit_in_bytes` of version 1) and of its resources
/// (`ulimit -v` and `ulimit -d`).
///
/// Returns `None` if the kernel reports no limit. Reads /proc and /sys, which a sandbox may hide.
pub fn process_memory() -> Option<u64> {
    let limit = memory_limit(|path| fs::read_to_string(path).ok());
    limit.into_iter().chain(resource_limits()).min()
}

/// Returns the limits of the address space and of the heap, in bytes.
#[cfg(target_os = "linux")]
fn resource_limits() -> impl Iterator<Item = u64> {
    use rustix::process::{Resource, getrlimit};
    let limits = [Resource::As, Resource::Data].map(|resource| getrlimit(resource).current);
    limits.into_iter().flatten()
}

/// Returns no limits, as other systems have none of these.
#[cfg(not(target_os = "linux"))]
fn resource_limits() -> impl Iterator<Item = u64> {
    std::iter::empty()
}

/// Returns the limit of a system whose files `read` returns.
fn memory_limit(read: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let machine = read("/proc/meminfo").and_then(|text| mem_total(&text));
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let limits = groups.lines().filter_map(|line| cgroup_limit(line, &read));
    machine.into_iter().chain(limits).min()
}

/// Returns `MemTotal` of `/proc/meminfo`, in bytes.
fn mem_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns the lowest limit of a control group and its ancestors, in bytes.
///
/// `line` is a line of `/proc/self/cgroup`: hierarchy, controllers, path. In a container the path
/// may lie outside of the mounted tree: then the root of the mount, which is read last, is the
/// container's own group.
fn cgroup_limit(line: &str, read: &impl Fn(&str) -> Option<String>) -> Option<u64> {
    let mut fields = line.splitn(3, ':');
    let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let (mount, file) = if number == "0" && controllers.is_empty() {
        ("/sys/fs/cgroup", "memory.max")
    } else if controllers.split(',').any(|name| name == "memory") {
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
    } else {
        return None;
    };
    let inner = Path::new(path);
    if inner.components().any(|part| part == Component::ParentDir) {
        return parse_limit(&read(&format!("{mount}/{file}"))?);
    }
    let of = |group: &Path| {
        let group = group.to_str()?.trim_end_matches('/');
        parse_limit(&read(&format!("{mount}{group}/{file}"))?)
    };
    inner.ancestors().filter_map(of).min()
}

/// Parses a limit in bytes. Returns `None` for `max`.
fn parse_limit(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::memory_limit;

    fn of(files: &[(&str, &str)]) -> Option<u64> {
        memory_limit(|path| {
            let file = files.iter().find(|(name, _)| *name == path);
            file.map(|(_, text)| (*text).to_owned())
        })
    }

    const MACHINE: (&str, &str) = (
        "/proc/meminfo",
        "MemTotal:       16384000 kB\nMemFree:         1000000 kB\n",
    );
    const ALL: u64 = 16_384_000 * 1024;

    #[test]
    fn machine_memory_without_a_lower_cgroup_limit() {
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[MACHINE]), Some(ALL));
        let unlimited = [
            MACHINE,
            ("/proc/self/cgroup", "0::/user.slice\n"),
            ("/sys/fs/cgroup/user.slice/memory.max", "max\n"),
        ];
        assert_eq!(of(&unlimited), Some(ALL));
        let larger = [
            MACHINE,
            ("/proc/self/cgroup", "5:cpu,memory:/\n"),
            (
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
        ];
        assert_eq!(of(&larger), Some(ALL));
    }

    /// A shell limits its own address space, and the test runs itself under it.
    #[test]
    #[cfg(target_os = "linux")]
    fn limit_of_the_address_space() {
        const CHILD: &str = "FULLSEND_MEMORY_CHILD";
        const LIMIT: u64 = 512 << 20;
        if std::env::var_os(CHILD).is_some() {
            return assert_eq!(super::process_memory(), Some(LIMIT));
        }
        let test = std::env::current_exe().unwrap();
        let output = std::process::Command::new("sh")
            .args([
                "-c",
                &format!("ulimit -v {}; exec \"$0\" \"$@\"", LIMIT >> 10),
            ])
            .arg(test)
            .args(["--exact", "memory::tests::limit_of_the_address_space"])
            .args(["--test-threads", "1"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("1 passed"), "{text}");
    }

    #[test]
    fn lowest_limit_of_the_ancestor_cgroups() {
        let nested = [
            MACHINE,
            ("/proc/self/cgroup", "0::/system.slice/a.service\n"),
            ("/sys/fs/cgroup/system.slice/a.service/memory.max", "max\n"),
            ("/sys/fs/cgroup/system.slice/memory.max", "2147483648\n"),
        ];
        assert_eq!(of(&nested), Some(2 << 30));
        let first_version = [
            MACHINE,
            (
                "/proc/self/cgroup",
                "4:memory:/docker/1\n3:cpu:/docker/1\n0::/\n",
            ),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "67108864\n"),
        ];
        assert_eq!(of(&first_version), Some(64 << 20));
        let outside = [
            MACHINE,
            ("/proc/self/cgroup", "0::/../other\n"),
            ("/sys/fs/cgroup/memory.max", "33554432\n"),
        ];
        assert_eq!(of(&outside), Some(32 << 20));
    }
}
