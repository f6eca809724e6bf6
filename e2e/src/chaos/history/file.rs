//! The file of a history: a line of JSON for each record. It writes and reads; it judges nothing.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::{Call, Deed, History, Revision, Sample, Standing, Trouble, Watched};

/// The first line of a history's file: what there is one of.
#[derive(Deserialize)]
struct Head {
    cluster: String,
    base: Revision,
    last: Option<Revision>,
    hashes: BTreeMap<String, u32>,
}

/// One line of a history's file.
#[derive(Serialize)]
#[serde(tag = "record", rename_all = "camelCase")]
enum Line<'a> {
    Run { cluster: &'a str, base: Revision, last: Option<Revision>, hashes: &'a BTreeMap<String, u32> },
    Call(&'a Call),
    Watch(&'a Watched),
    Replay(&'a Watched),
    Sample(&'a Sample),
    Standing(&'a Standing),
    Deed(&'a Deed),
    Trouble { trouble: &'a Trouble },
}

impl History {
    /// Writes it as lines of JSON.
    pub fn write(&self, path: &Path) -> Result<()> {
        let file = std::fs::File::create(path).with_context(|| format!("failed to create {}", path.display()))?;
        let mut out = BufWriter::new(file);
        for line in self.lines() {
            serde_json::to_writer(&mut out, &line).context("failed to write the history")?;
            out.write_all(b"\n").context("failed to write the history")?;
        }
        out.flush().context("failed to write the history")
    }

    /// Reads what was written.
    pub fn read(path: &Path) -> Result<Self> {
        let file = std::fs::File::open(path).with_context(|| format!("failed to open {}", path.display()))?;
        let mut history = Self::default();
        for (number, line) in BufReader::new(file).lines().enumerate() {
            let line = line.with_context(|| format!("failed to read {}", path.display()))?;
            history.take(&line).with_context(|| format!("line {} of {}", number + 1, path.display()))?;
        }
        Ok(history)
    }

    /// Takes up one line. By hand what it is: serde reads no numbers for keys of maps once it has looked for a tag.
    fn take(&mut self, line: &str) -> Result<()> {
        let mut record: Map<String, Json> = serde_json::from_str(line)?;
        let kind = record.remove("record").context("it does not say what it is")?;
        let record = Json::Object(record);
        match kind.as_str() {
            Some("run") => {
                let Head { cluster, base, last, hashes } = serde_json::from_value(record)?;
                (self.cluster, self.base, self.last, self.hashes) = (cluster, base, last, hashes);
            }
            Some("call") => self.calls.push(serde_json::from_value(record)?),
            Some("watch") => self.watches.push(serde_json::from_value(record)?),
            Some("replay") => {
                let watched: Watched = serde_json::from_value(record)?;
                self.replays.insert(watched.name.clone(), watched);
            }
            Some("sample") => self.samples.push(serde_json::from_value(record)?),
            Some("standing") => self.standings.push(serde_json::from_value(record)?),
            Some("deed") => self.deeds.push(serde_json::from_value(record)?),
            Some("trouble") => self.troubles.push(serde_json::from_value(record["trouble"].clone())?),
            Some(_) | None => bail!("it is {kind}, which is no kind of record"),
        }
        Ok(())
    }

    fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        let Self { cluster, base, last, calls, watches, replays, hashes, samples, standings, deeds, troubles } = self;
        let head = Line::Run { cluster, base: *base, last: *last, hashes };
        std::iter::once(head)
            .chain(calls.iter().map(Line::Call))
            .chain(watches.iter().map(Line::Watch))
            .chain(replays.values().map(Line::Replay))
            .chain(samples.iter().map(Line::Sample))
            .chain(standings.iter().map(Line::Standing))
            .chain(deeds.iter().map(Line::Deed))
            .chain(troubles.iter().map(|trouble| Line::Trouble { trouble }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::clock::Moment;
    use crate::chaos::history::{
        Answer, Change, ClientId, Event, Key, Listed, MemberId, Op, Outcome, Role, Step, Value,
    };

    #[test]
    fn every_record_has_its_line() {
        let call = Call {
            client: ClientId(1),
            member: "db-0".into(),
            key: Key("k".into()),
            op: Op::Swap { from: None, to: Value(2) },
            invoked: Moment(1),
            returned: Moment(2),
            outcome: Outcome::Done { revision: Revision(5), answer: Answer::Swap(true) },
        };
        assert_eq!(call.acknowledged(), Some((Revision(5), Change::Put(Value(2)))));
        let history = History {
            calls: vec![call],
            troubles: vec![Trouble::RanTwice("db-0".into())],
            deeds: vec![Deed {
                at: Moment(3),
                by: None,
                step: Step::Promote { serial: 1, id: MemberId(2), expect: [].into() },
            }],
            ..History::default()
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history.jsonl");
        history.write(&path).unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        let records: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let kinds: Vec<_> = records.iter().map(|record| record["record"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["run", "call", "deed", "trouble"]);
        assert_eq!(records[1]["op"]["swap"]["to"], 2);
        assert_eq!(records[1]["outcome"]["done"]["revision"], 5);
    }

    #[test]
    fn what_was_written_is_read_back() {
        let event = Event { revision: Revision(3), key: Key("k".into()), change: Change::Deleted };
        let watched = |name: &str| Watched {
            name: name.into(),
            after: Revision(1),
            events: vec![event.clone()],
            refused: Some("compacted".into()),
        };
        let sample = Sample {
            begun: Moment(1),
            ended: Moment(2),
            wished: 3,
            members: Some([(MemberId(7), Listed { name: "db-0".into(), learner: true })].into()),
            running: ["db-0".to_owned()].into(),
            cut: ["db-1".to_owned()].into(),
        };
        let call = Box::new(Step::Remove { id: MemberId(7), expect: [(MemberId(7), Role::Voter)].into() });
        let history = History {
            cluster: "db".into(),
            base: Revision(1),
            last: Some(Revision(3)),
            calls: Vec::new(),
            watches: vec![watched("w")],
            replays: [("db-0".to_owned(), watched("db-0"))].into(),
            hashes: [("db-0".to_owned(), 9)].into(),
            samples: vec![sample],
            standings: vec![Standing {
                asked: Moment(1),
                answered: Moment(2),
                member: MemberId(u64::MAX),
                started: Moment(0),
                committed: 9,
                applied: 8,
            }],
            deeds: vec![
                Deed { at: Moment(3), by: Some("quorate-1".into()), step: Step::Calls { call } },
                Deed { at: Moment(4), by: None, step: Step::MoveLeader },
            ],
            troubles: vec![Trouble::Unfinished("x".into())],
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history.jsonl");
        history.write(&path).unwrap();
        assert_eq!(History::read(&path).unwrap(), history);
        std::fs::write(&path, r#"{"record":"cal"}"#).unwrap();
        let error = format!("{:#}", History::read(&path).unwrap_err());
        assert!(error.contains("line 1 of") && error.contains("no kind of record"), "{error}");
    }
}
