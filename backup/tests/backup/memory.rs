//! Restores of databases that are larger than the memory that they may take: with deltas, with etcdutl, whose memory counts
//! too, and where the database is brought back to an earlier revision.

use std::fs;

use tempfile::TempDir;

use crate::agent::Ended;
use crate::real::newest;
use crate::recorded::Recorded;

/// What it may take, in KiB.
const MOST: u64 = 128 << 10;
/// Where the deltas end: their events take some 200 MB.
const LAST: usize = 14_000;
/// How many revisions are in each: some 4 MB of events, as an archive stores at once.
const REVISIONS: usize = 280;
/// A revision before which there is still more than may be taken.
const EARLIER: &str = "13000";

fn path(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).to_str().unwrap().to_owned()
}

/// What was restored is more than the memory that it took. It tells the result.
fn is_more_than_it_took(what: &str, ended: &Ended) -> serde_json::Value {
    let told = ended.json();
    assert!(told["databaseBytes"].as_u64() > Some(MOST << 10), "{told}");
    assert!(ended.most_rss_anon < MOST, "{what}: {} KiB", ended.most_rss_anon);
    eprintln!("{what}: {} MiB with {} KiB", told["databaseBytes"].as_u64().unwrap() >> 20, ended.most_rss_anon);
    told
}

#[tokio::test]
async fn a_restore_takes_little_memory_however_much_was_recorded() {
    let Some(binaries) = newest() else { return };
    let mut recorded = Recorded::full().await;
    for to in (REVISIONS..=LAST).step_by(REVISIONS) {
        recorded.record(to as u64).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let (tool, whole, earlier) = (binaries.tool("etcdutl"), path(&folder, "whole"), path(&folder, "earlier"));
    let with_tool = ["--etcdutl", tool.to_str().unwrap(), "--data-dir"];
    let ended = recorded.run("restore", &[&with_tool[..], &[whole.as_str()]].concat());
    let told = is_more_than_it_took("deltas and etcdutl", &ended);
    assert!(told["events"].as_u64() > Some(LAST as u64), "{told}");
    fs::remove_dir_all(&whole).unwrap();

    // A later snapshot with all of it in its history.
    let database = path(&folder, "db");
    is_more_than_it_took("deltas", &recorded.run("restore", &["--database", &database]));
    recorded.goes_on_with(database.as_ref(), LAST as u64).await;
    fs::remove_file(&database).unwrap();
    let name = recorded.chain.key.name.as_str();
    let which = ["--generation", name, "--to", EARLIER];
    let ended = recorded.run("restore", &[&which[..], &with_tool, &[earlier.as_str()]].concat());
    let told = is_more_than_it_took("brought back", &ended);
    assert!(told["later"].as_u64() > Some(0) && told["events"] == 0, "{told}");
}
