//! What is done with backups that are there, in every kind of store: they are copied into it from a volume and out of it again,
//! byte for byte, shown, and removed when no rule keeps them. What the rules are is tried elsewhere.

use std::fs;

use jiff::SignedDuration;
use serde_json::Value;

use super::Server;
use super::place::Place;
use super::volume::Volume;
use crate::care::texts;
use crate::recorded::{Recorded, address};
use crate::snapshot::large;

/// What is stored of it are two parts.
const LARGE: usize = 24 << 20;

/// The sum of what is told of each generation.
fn sum(told: &Value, field: &str) -> u64 {
    told.as_array().unwrap().iter().map(|one| one[field].as_u64().unwrap()).sum()
}

/// The generations that `list` shows, all of them whole.
fn listed(place: &Place) -> usize {
    let listed = place.run("list", &[]).json();
    let lines = listed.as_array().unwrap();
    assert!(lines.iter().all(|line| line["state"] == "whole"), "{listed}");
    lines.len()
}

pub async fn all(server: &dyn Server) {
    let mut recorded = Recorded::with_deltas(&[10, 40]).await;
    let (key, taken) = (recorded.chain.key.clone(), recorded.chain.full.taken);
    let oldest = recorded.taken_at(taken - SignedDuration::from_hours(97)).await;
    for hours in [73, 49] {
        recorded.taken_at(taken - SignedDuration::from_hours(hours)).await;
    }
    let (pieces, folder) = (large(LARGE), tempfile::tempdir().unwrap());
    let (mut content, mut number) = (Vec::new(), 0);
    while let Some(piece) = pieces(number) {
        content.extend(piece);
        number += 1;
    }
    fs::write(folder.path().join("db"), &content).unwrap();
    recorded.replace_full(&folder.path().join("db")).await;

    let (volume, place) = (Place::at(address(recorded.folder.path())), server.place("care"));
    let before = volume.content().await;
    let copied = volume.copy("blue", &place);
    assert_eq!(["manifests", "present"].map(|field| sum(&copied, field)), [7, 0], "{copied}");
    assert!(place.content().await == before);
    // What is there already has the right size, as each store tells it.
    let copied = volume.copy("blue", &place);
    assert_eq!(["manifests", "present", "bytes"].map(|field| sum(&copied, field)), [0, 7, 0], "{copied}");

    assert_eq!(listed(&place), 5);
    let shown = place.run("inspect", &["--lineage", "blue", "--generation", key.name.as_str()]).json();
    assert_eq!(shown["key"].as_str(), Some(key.to_string().as_str()), "{shown}");
    assert_eq!((shown["full"]["revision"].as_u64(), shown["deltas"][1]["to"].as_u64()), (Some(7), Some(40)), "{shown}");

    // What was 60 hours ago takes the generation that had begun 73 hours ago.
    let rules = ["--lineage", "blue", "--keep-last", "60h"];
    let planned = place.run("prune", &[&rules[..], &["--dry-run"]].concat()).json();
    assert_eq!((texts(&planned["generations"]), listed(&place)), (vec![oldest.to_string().as_str()], 5), "{planned}");
    let pruned = place.run("prune", &rules).json();
    assert_eq!(pruned["generations"], planned["generations"], "{pruned}");
    assert_eq!((pruned["objects"].as_u64(), listed(&place)), (Some(2), 4), "{pruned}");
    let (mut left, gone) = (before, format!("{}/", oldest.folder()));
    left.retain(|name, _| !name.starts_with(&gone));
    assert!(place.content().await == left);

    // And back.
    let other = Volume::new();
    let back = other.place("back");
    let copied = place.copy("blue", &back);
    assert_eq!(["manifests", "present"].map(|field| sum(&copied, field)), [6, 0], "{copied}");
    assert!(back.content().await == left);
    let arguments = ["--lineage", "blue", "--scratch", folder.path().to_str().unwrap()];
    let proved = back.run("verify", &arguments).json();
    assert_eq!(proved["revision"].as_u64(), Some(40), "{proved}");
}
