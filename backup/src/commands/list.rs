//! `quorate-agent list` and `inspect`.

use std::fmt::Write as _;

use clap::Args;
use jiff::Timestamp;
use quorate_backup::care::{Overview, State, keys};
use quorate_backup::format::{Chain, Full, GenerationName, Lineage, Link, opened_by};
use quorate_backup::keys::{Fingerprint, Fingerprints, KeyFiles};
use serde::Serialize;

use super::arguments::{IdentityArgument, StoreArguments};
use super::print::{self, Output};

/// The arguments of `list`.
#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    store: StoreArguments,
    /// Only of this one
    #[arg(long, value_name = "NAME", env = "QUORATE_LINEAGE")]
    lineage: Option<Lineage>,
    /// How to show the result
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,
}

/// The arguments of `inspect`.
#[derive(Debug, Args)]
pub struct Inspect {
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    identity: IdentityArgument,
    /// Whose
    #[arg(long, value_name = "NAME", env = "QUORATE_LINEAGE")]
    lineage: Lineage,
    /// Which generation; the last one, if not said
    #[arg(long, value_name = "NAME")]
    generation: Option<GenerationName>,
    /// How to show the result
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,
}

/// A generation, as it is shown.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    lineage: String,
    cluster: String,
    generation: String,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    whole: Option<Whole>,
    /// What can be restored of one that is damaged further on.
    #[serde(skip_serializing_if = "Option::is_none")]
    sound: Option<Whole>,
}

/// What can be restored of it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Whole {
    etcd_version: String,
    first_revision: u64,
    last_revision: u64,
    from: Timestamp,
    to: Timestamp,
    deltas: usize,
    events: u64,
    database_bytes: u64,
    stored_bytes: u64,
    /// Fingerprints of the public keys; none, if it is not encrypted.
    encrypted_to: Vec<Fingerprint>,
}

impl Whole {
    fn of(chain: &Chain) -> Self {
        let deltas: u64 = chain.links.iter().map(|link| link.delta.data.stored_bytes()).sum();
        Self {
            etcd_version: chain.full.etcd_version.clone(),
            first_revision: chain.full.revision.get(),
            last_revision: chain.head().get(),
            from: chain.full.taken,
            to: chain.last_moment(),
            deltas: chain.links.len(),
            events: chain.links.iter().map(|link| link.delta.events).sum(),
            database_bytes: chain.full.database_bytes,
            stored_bytes: chain.full.data.stored_bytes() + deltas,
            encrypted_to: chain.full.data.recipients().to_vec(),
        }
    }
}

impl Line {
    fn of(Overview { key, state }: &Overview) -> Self {
        let (word, fault, whole, sound) = match state {
            State::Whole(chain) => ("whole", None, Some(Whole::of(chain)), None),
            State::WithoutFull => ("incomplete", None, None, None),
            State::BrokenOff { sound, damage } => ("damaged", Some(damage.clone()), None, Some(Whole::of(sound))),
            State::Damaged(fault) => ("damaged", Some(fault.clone()), None, None),
        };
        let (lineage, cluster) = (key.lineage.to_string(), key.cluster.to_string());
        Self { lineage, cluster, generation: key.name.to_string(), state: word, fault, whole, sound }
    }

    fn row(&self) -> Vec<String> {
        let mut row = vec![self.lineage.clone(), self.cluster.clone(), self.generation.clone()];
        match &self.whole {
            Some(whole) => row.extend([
                whole.etcd_version.clone(),
                format!("{}..{}", whole.first_revision, whole.last_revision),
                print::time(whole.from),
                print::time(whole.to),
                print::size(whole.database_bytes),
                print::size(whole.stored_bytes),
                Fingerprints(whole.encrypted_to.clone()).to_string(),
            ]),
            None => row.push(self.fault.clone().unwrap_or_else(|| self.state.to_owned())),
        }
        row
    }
}

const HEADINGS: [&str; 10] =
    ["LINEAGE", "CLUSTER", "GENERATION", "ETCD", "REVISIONS", "FROM", "TO", "DATABASE", "STORED", "ENCRYPTED TO"];

impl List {
    /// Shows what there is.
    pub fn run(self) -> anyhow::Result<()> {
        let Self { store, lineage, output } = self;
        super::run(async move {
            let store = store.open(KeyFiles::default())?;
            store.check().await?;
            let (bar, mut lines) = (print::count_bar("list"), Vec::new());
            for key in keys(&store, lineage.as_ref()).await? {
                lines.push(Line::of(&Overview::read(&store, key, &|done, total| print::set(&bar, done, total)).await?));
            }
            bar.finish_and_clear();
            print::show(output, &lines, || print::table(&HEADINGS, &lines.iter().map(Line::row).collect::<Vec<_>>()))
        })
    }
}

/// A generation with its parts.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Parts<'a> {
    key: String,
    full: &'a Full,
    /// Of that manifest, as it is stored.
    manifest_blake3: String,
    deltas: Vec<&'a quorate_backup::format::Delta>,
}

impl Inspect {
    /// Shows one generation.
    pub fn run(self) -> anyhow::Result<()> {
        super::run(Box::pin(self.inspect()))
    }

    async fn inspect(self) -> anyhow::Result<()> {
        let Self { store, identity, lineage, generation, output } = self;
        let identity = KeyFiles::from(identity);
        let store = store.open(identity.clone())?;
        store.check().await?;
        let all = keys(&store, Some(&lineage)).await?;
        let found = all.into_iter().rfind(|key| generation.as_ref().is_none_or(|name| key.name == *name));
        let Some(key) = found else {
            anyhow::bail!("there is no such backup of {lineage} in {}", store.address());
        };
        let bar = print::count_bar("inspect");
        let read = Overview::read(&store, key, &|done, total| print::set(&bar, done, total)).await;
        bar.finish_and_clear();
        let Overview { key, state } = read?;
        let (chain, damage) = match state {
            State::Whole(chain) => (chain, None),
            State::BrokenOff { sound, damage } => (sound, Some(damage)),
            State::WithoutFull => anyhow::bail!("{key} has no full snapshot: it is being taken, or never was"),
            State::Damaged(fault) => anyhow::bail!(fault),
        };
        // Manifests are read without it: whoever gives one asks whether it fits.
        if identity.identity.is_some() {
            opened_by(&identity, &chain.full.data, &key.to_string())?;
        }
        let deltas = chain.links.iter().map(|link| &link.delta).collect();
        let manifest_blake3 = chain.full_hash.to_string();
        let parts = Parts { key: key.to_string(), full: &chain.full, manifest_blake3, deltas };
        print::show(output, &parts, || text(&chain))?;
        // What is shown is what can be restored, and not all of it.
        damage.map_or(Ok(()), |damage| Err(anyhow::anyhow!(damage)))
    }
}

fn text(chain: &Chain) -> String {
    let Full { etcd_version, revision, compact_revision, taken, database_bytes, data, .. } = &chain.full;
    let mut text = format!(
        "{}\nfull: revision {revision} (compacted up to {compact_revision}) of etcd {etcd_version}, {}\n      {} as {} in {}\n      \
         manifest {} with the hash {}",
        chain.key,
        print::time(*taken),
        print::size(*database_bytes),
        print::size(data.stored_bytes()),
        chain.key.data(&data.name),
        chain.key.full(),
        chain.full_hash,
    );
    if !data.recipients().is_empty() {
        let _ = write!(text, "\n      encrypted to {}", Fingerprints(data.recipients().to_vec()));
    }
    if chain.links.is_empty() {
        return text + "\nno deltas";
    }
    let row = |Link { delta, .. }: &Link| {
        let last = delta.samples.last().map_or_else(String::new, |sample| print::time(sample.at));
        let revisions = format!("{}..{}", delta.from, delta.to);
        let (events, leases) = (delta.events.to_string(), delta.leases.len().to_string());
        vec![
            revisions,
            events,
            leases,
            last,
            print::size(delta.data.plain_bytes),
            print::size(delta.data.stored_bytes()),
        ]
    };
    let rows: Vec<_> = chain.links.iter().map(row).collect();
    text += "\n\n";
    text + &print::table(&["REVISIONS", "EVENTS", "LEASES", "UNTIL", "SIZE", "STORED"], &rows)
}
