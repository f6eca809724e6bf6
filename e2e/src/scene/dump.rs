//! After a failure: everything one needs to understand it, written to `.cache/failures/<test>/`, and a short excerpt for
//! the terminal. It only reads, and what it can't read it says so instead of failing.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::{Scene, kubectl};
use crate::workspace;

/// Where the operator runs.
const OPERATOR_NAMESPACE: &str = "quorate-system";
/// How many lines of each source the excerpt quotes.
const EXCERPT_LINES: usize = 12;
/// Where the error itself is.
const ERROR: &str = "error.txt";
/// How many lines of an error are told once more when all scenes have ended.
const TOLD_LINES: usize = 80;
/// What is written out of the scene's namespace.
const KINDS: &str = "etcd,pods,persistentvolumeclaims,services,poddisruptionbudgets";

/// Writes the dump and returns the excerpt.
pub async fn dump(scene: &Scene, error: &anyhow::Error) -> String {
    let folder = failures().join(scene.name());
    // What an earlier failure left would be taken for this one's.
    let _ = std::fs::remove_dir_all(&folder);
    if let Err(failed) = std::fs::create_dir_all(&folder) {
        return format!("failed to create {}: {failed}", folder.display());
    }
    let out = Out { folder };
    out.write(ERROR, &format!("{error:?}\n"));
    let space = scene.namespace();
    let objects = out.save("objects.txt", &["-n", space, "get", KINDS, "-o", "wide"]).await;
    out.save("objects.yaml", &["-n", space, "get", KINDS, "-o", "yaml"]).await;
    let events = out.save("events.txt", &["-n", space, "get", "events", "--sort-by=.lastTimestamp"]).await;
    out.save("describe.txt", &["-n", space, "describe", "etcd,pods,persistentvolumeclaims"]).await;
    out.save("nodes.txt", &["describe", "nodes"]).await;
    out.save("volumes.yaml", &["get", "persistentvolumes", "-o", "yaml"]).await;
    logs(&out, space, &format!("{}/", "pods")).await;
    let operator = logs(&out, OPERATOR_NAMESPACE, "operator/").await;
    let processes: Vec<_> = super::etcd_processes(space).iter().map(|process| format!("{process:?}\n")).collect();
    out.write("processes.txt", &processes.concat());
    format!(
        "--- objects\n{}\n--- last events\n{}\n--- operator\n{}\n--- everything: {}",
        objects.trim_end(),
        tail(&events),
        tail(&operator),
        out.folder.display()
    )
}

fn failures() -> PathBuf {
    workspace::cache().join("failures")
}

/// What failed since then, in short: below thousands of lines of many scenes it would have to be looked for.
pub fn failed_since(began: SystemTime) -> Option<String> {
    errors_since(&failures(), began)
}

fn errors_since(folder: &Path, began: SystemTime) -> Option<String> {
    let mut scenes: Vec<PathBuf> = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    scenes.sort_unstable();
    let errors = scenes.iter().filter_map(|scene| {
        let path = scene.join(ERROR);
        let written = path.metadata().and_then(|found| found.modified()).ok()?;
        let error = std::fs::read_to_string(&path).ok().filter(|_| written >= began)?;
        let error: Vec<&str> = error.lines().take(TOLD_LINES).collect();
        Some(format!("{}: {}\n", scene.file_name()?.display(), error.join("\n  ")))
    });
    let told: String = errors.collect();
    (!told.is_empty()).then(|| format!("what failed, in short:\n{told}everything: {}", folder.display()))
}

/// The logs of each container of each pod of a namespace, of its life now and of the one before. Returns the longest
/// log: of several operators, the leader's.
async fn logs(out: &Out, space: &str, below: &str) -> String {
    let names = ["-n", space, "get", "pods", "-o"];
    let paths = "jsonpath={range .items[*]}{.metadata.name}{range .spec.initContainers[*]} {.name}{end}\
                 {range .spec.containers[*]} {.name}{end}{\"\\n\"}{end}";
    let listed = say(&[&names[..], &[paths]].concat()).await;
    let mut longest = String::new();
    for line in listed.lines() {
        let mut words = line.split_whitespace();
        let Some(pod) = words.next() else { continue };
        for container in words {
            let call = ["-n", space, "logs", pod, "-c", container];
            let now = out.save(&format!("{below}{pod}.{container}.log"), &call).await;
            out.save(&format!("{below}{pod}.{container}.previous.log"), &[&call[..], &["--previous"]].concat()).await;
            if now.len() > longest.len() {
                longest = now;
            }
        }
    }
    longest
}

struct Out {
    folder: PathBuf,
}

impl Out {
    /// Writes what kubectl says to a file, and returns it.
    async fn save(&self, file: &str, args: &[&str]) -> String {
        let text = say(args).await;
        self.write(file, &text);
        text
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.folder.join(file);
        let folder = path.parent().unwrap_or(&path);
        if let Err(error) = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, text)) {
            eprintln!("failed to write {}: {error}", path.display());
        }
    }
}

async fn say(args: &[&str]) -> String {
    match kubectl(args, None).await {
        Ok(said) if said.fine => said.out,
        Ok(said) => format!("{}{}", said.out, said.err),
        Err(error) => format!("{error:#}"),
    }
}

fn tail(text: &str) -> String {
    let lines: Vec<_> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(EXCERPT_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_in_this_run_is_told_in_short() {
        let below = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(below.path().join("chaos")).unwrap();
        std::fs::create_dir_all(below.path().join("without")).unwrap();
        let long: Vec<String> = (0..200).map(|line| format!("line {line}")).collect();
        let error = format!("it did not converge\n{}", long.join("\n"));
        std::fs::write(below.path().join("chaos").join(ERROR), error).unwrap();
        let told = errors_since(below.path(), SystemTime::UNIX_EPOCH).unwrap();
        assert!(told.starts_with("what failed, in short:\nchaos: it did not converge\n  line 0\n"), "{told}");
        assert!(told.contains("line 78") && !told.contains("line 79"), "{told}");
        let later = SystemTime::now() + std::time::Duration::from_mins(1);
        assert_eq!(errors_since(below.path(), later), None);
        assert_eq!(errors_since(&below.path().join("none"), SystemTime::UNIX_EPOCH), None);
    }

    #[test]
    fn the_excerpt_is_short() {
        let text: String = (0..50).map(|line| line.to_string()).collect::<Vec<_>>().join("\n");
        let tail = tail(&text);
        assert_eq!(tail.lines().count(), EXCERPT_LINES);
        assert!(tail.ends_with("49"));
    }
}
