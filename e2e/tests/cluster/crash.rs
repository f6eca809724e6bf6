//! The operator crashes right after its n-th write, for every n of a whole create-scale-heal-shrink run and of ways to
//! other versions, up and down: the end is the same as without.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use anyhow::{Context as _, Result, ensure};
use quorate_crds::{HexId, Ledger, LedgerMember, names};
use quorate_e2e::faults::operator::Operator;
use quorate_e2e::faults::pods;
use quorate_e2e::scene::{
    Cluster, Membership, PATIENCE, Scene, Stage, View, Wish, play, play_side_by_side, thorough, wait_for,
};
use serde_json::{Value, json};

use super::upgrade::{V3_5, V3_6, V3_7, goes_to, in_place};

/// The writes after which it crashes in `make test`: while the cluster is created, while it grows, and while it is healed or
/// shrinks, if the run has as many.
const SAMPLE: [u32; 3] = [5, 30, 60];
/// More writes than any run has.
const MOST: u32 = 400;
/// So many runs in a row have to go through without a crash until no more are tried: one has a few writes more than another.
const IN_A_ROW: u32 = 3;
/// Runs at a time, each with an operator of its own.
const LANES: u32 = 4;
/// The kinds of what a cluster has in its namespace.
const KINDS: &str = "pods,persistentvolumeclaims,services,secrets,configmaps,poddisruptionbudgets";
/// What Kubernetes puts into a spec: another value in each run.
const GIVEN: [&str; 4] = ["nodeName", "volumeName", "clusterIP", "clusterIPs"];
/// The variable of a launcher with the key of the operator that made its pod: each process of an operator has another.
const TICKET_KEY: &str = "QUORATE_TICKET_KEY";

/// What befalls a cluster while the operator crashes somewhere.
#[derive(Clone, Copy)]
enum Course {
    /// It is created, scaled, loses a pod and a volume, and shrinks.
    Life,
    /// It goes from one version to another, by so many steps of one minor.
    Way { from: &'static str, to: &'static str, steps: u32 },
}

impl Course {
    /// Every run has more writes than this: who does not crash by then never does.
    fn least(self) -> u32 {
        match self {
            // For four members 4 claims, 4 Secrets, 4 tickets, 4 labels and 5 pods, as one comes again, and 2 claims and
            // 2 pods are deleted; 3 Secrets of the cluster, 2 Services and a budget; in etcd 3 additions, 3 promotions
            // and 3 removals; and the ledger before the seed, the growth and the replacement.
            Self::Life => 40,
            // For three members 3 trials that are made and ended, and 3 switches, each in the ledger and then on the
            // pod; and in etcd the leadership is moved.
            Self::Way { steps, .. } => 12 * steps,
        }
    }

    /// What a part of the scene in which it is run is called.
    fn lane(self) -> &'static str {
        match self {
            Self::Life => "crash",
            Self::Way { .. } => "crash_way",
        }
    }

    /// How many members there are in the end.
    fn voters(self) -> usize {
        match self {
            Self::Life => 1,
            Self::Way { .. } => 3,
        }
    }

    /// What has to be there before, by an operator that does not crash.
    async fn begins(self, scene: &Scene, db: &Cluster) -> Result<()> {
        match self {
            Self::Life => Ok(()),
            Self::Way { from, .. } => {
                scene.create(&Wish::new(db.name(), 3).version(from)).await?;
                db.settles(3).await.context("create")?;
                db.put("hello", "world").await
            }
        }
    }

    /// The run itself. Says what there was on the way, where that tells more than the end.
    async fn acts(self, scene: &Scene, db: &Cluster) -> Result<Vec<String>> {
        match self {
            Self::Life => lives(scene, db).await,
            Self::Way { to, .. } => {
                in_place(db, async || goes_to(db, to).await.map(drop)).await?;
                Ok(Vec::new())
            }
        }
    }
}

/// The numbers of writes that are still to be tried, and what came of the others.
struct Tries {
    course: Course,
    left: RefCell<VecDeque<u32>>,
    /// Those before which the run was over.
    outlived: RefCell<BTreeSet<u32>>,
    /// What there was on the way, and in the end, for each number.
    ends: RefCell<BTreeMap<u32, Vec<String>>>,
}

impl Tries {
    fn next(&self) -> Option<u32> {
        self.left.borrow_mut().pop_front()
    }

    fn tell(&self, number: u32, Run { crashed, end }: Run) -> Result<()> {
        self.ends.borrow_mut().insert(number, end);
        if !crashed {
            self.outlives(number)?;
        }
        self.are_alike()
    }

    fn outlives(&self, number: u32) -> Result<()> {
        let least = self.course.least();
        ensure!(number > least, "the operator did not crash after write {number}, and every run has more than {least}");
        self.outlived.borrow_mut().insert(number);
        if let Some(first) = self.first_of_a_row() {
            eprintln!("a whole run has fewer than {first} writes");
            self.left.borrow_mut().clear();
        }
        Ok(())
    }

    /// The first of so many numbers in a row after none of which there was a crash.
    fn first_of_a_row(&self) -> Option<u32> {
        let outlived = self.outlived.borrow();
        let begins_row = |first: &u32| (*first..first + IN_A_ROW).all(|number| outlived.contains(&number));
        outlived.iter().copied().find(begins_row)
    }

    /// What a run without a crash leaves, once one has ended.
    fn expected(&self) -> Option<Vec<String>> {
        self.ends.borrow().get(self.outlived.borrow().first()?).cloned()
    }

    /// Demands that what crashes left so far is what a run without one leaves.
    fn are_alike(&self) -> Result<()> {
        let Some(expected) = self.expected() else { return Ok(()) };
        for (number, end) in &*self.ends.borrow() {
            ensure!(
                *end == expected,
                "a crash after write {number} left\n{}\nand a run without one\n{}",
                end.join("\n"),
                expected.join("\n")
            );
        }
        Ok(())
    }

    /// Tells what they left, and demands that there were crashes.
    fn tell_end(&self) -> Result<()> {
        let expected = self.expected().context("the operator always crashed: there is nothing to compare with")?;
        let crashes = self.ends.borrow().len() - self.outlived.borrow().len();
        ensure!(crashes > 0, "the operator never crashed: nothing was shown");
        eprintln!("{crashes} crashes, each with the same end:\n{}", expected.join("\n"));
        Ok(())
    }
}

/// What came of a run.
struct Run {
    /// The operator crashed somewhere on the way.
    crashed: bool,
    /// What there was on the way, and in the end.
    end: Vec<String>,
}

#[tokio::test]
async fn a_crash_after_any_write_changes_nothing_in_the_end() -> Result<()> {
    play("crash_after_writes", Stage::Alone, async |scene| crashes_change_nothing(scene, Course::Life).await).await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_crash_after_any_write_of_an_upgrade_changes_nothing_in_the_end() -> Result<()> {
    let up = Course::Way { from: V3_6, to: V3_7, steps: 1 };
    play("crash_in_upgrade", Stage::Alone, async |scene| crashes_change_nothing(scene, up).await).await
}

/// Also while the logs that 3.5 has begun are cut for 3.7.
#[tokio::test]
#[ignore = "make e2e"]
async fn a_crash_after_any_write_from_3_5_to_3_7_changes_nothing_in_the_end() -> Result<()> {
    let up = Course::Way { from: V3_5, to: V3_7, steps: 2 };
    play("crash_from_3_5", Stage::Alone, async |scene| crashes_change_nothing(scene, up).await).await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_crash_after_any_write_from_3_7_to_3_6_changes_nothing_in_the_end() -> Result<()> {
    let down = Course::Way { from: V3_7, to: V3_6, steps: 1 };
    play("crash_from_3_7", Stage::Alone, async |scene| crashes_change_nothing(scene, down).await).await
}

/// To 3.5, which leaves the call that ends a downgrade unanswered.
#[tokio::test]
#[ignore = "make e2e"]
async fn a_crash_after_any_write_of_a_downgrade_changes_nothing_in_the_end() -> Result<()> {
    let down = Course::Way { from: V3_6, to: V3_5, steps: 1 };
    play("crash_in_downgrade", Stage::Alone, async |scene| crashes_change_nothing(scene, down).await).await
}

/// Many runs, each with a crash after another write.
async fn crashes_change_nothing(scene: &Scene, course: Course) -> Result<()> {
    let installed = Operator::new(scene.client());
    // First one that is never reached: what a run without a crash leaves is what the others are held against as they end.
    let crashing: Vec<u32> = if thorough() { (1..MOST).collect() } else { SAMPLE.into() };
    let numbers: VecDeque<u32> = [MOST].into_iter().chain(crashing).collect();
    let lanes = LANES.min(u32::try_from(numbers.len())?);
    let tries = Tries { course, left: numbers.into(), outlived: RefCell::default(), ends: RefCell::default() };
    let lane = async |_, scene: &Scene| {
        let runs = async |operator: &Operator| {
            while let Some(number) = tries.next() {
                let run = run(scene, operator, course, number).await;
                tries.tell(number, run.with_context(|| format!("a crash after write {number}"))?)?;
            }
            Ok(())
        };
        installed.of_its_own(scene, runs).await
    };
    installed.away_during(async || play_side_by_side(course.lane(), lanes, lane).await).await?;
    ensure!(!thorough() || tries.first_of_a_row().is_some(), "no {IN_A_ROW} runs in a row were without a crash");
    tries.tell_end()
}

/// One whole run with an operator that crashes somewhere on the way.
async fn run(scene: &Scene, operator: &Operator, course: Course, number: u32) -> Result<Run> {
    let db = scene.cluster(&format!("db{number}"));
    course.begins(scene, &db).await?;
    let (crashed, mut end) = operator
        .crashing_during(number, async || {
            let finished = Cell::new(false);
            let acts = async {
                let acted = course.acts(scene, &db).await;
                finished.set(true);
                acted
            };
            let watch = operator.crashes_once(async || {
                ensure!(finished.get(), "neither yet");
                Ok(())
            });
            let (crashed, acted) = tokio::join!(watch, acts);
            let healed = acted?;
            Ok((crashed?, healed))
        })
        .await?;
    db.settles(course.voters()).await?;
    db.reads("hello", "world").await?;
    end.extend(remains(scene, &db).await?);
    db.delete().await?;
    wait_for("its claims to be gone", PATIENCE, async || scene.has_no_claims().await).await?;
    Ok(Run { crashed, end })
}

/// What is another one in each run, replaced by what it is: the cluster's name, and a member's, whose number depends on who
/// was there before it.
struct Alike<'a> {
    db: &'a Cluster,
    members: &'a Membership,
    view: &'a View,
}

impl Alike<'_> {
    fn of_cluster(&self, text: &str) -> bool {
        text.strip_prefix(self.db.name()).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }

    /// A name, or the value of a label.
    fn name(&self, text: &str) -> String {
        match text.strip_prefix(self.db.name()) {
            _ if self.members.members.contains_key(text) => "<member>".to_owned(),
            Some(rest) if self.of_cluster(text) => format!("<cluster>{rest}"),
            Some(_) | None => text.replace(self.db.scene().namespace(), "<namespace>"),
        }
    }

    /// Any text in an object of this name. Only a member's own name and its own claim's UID become what they are.
    fn text(&self, text: &str, of: &str) -> String {
        let volumes = self.members.members.keys().filter_map(|name| Some((self.view.volume(name)?, name)));
        let mut alike = volumes.fold(text.to_owned(), |text, (uid, name)| {
            text.replace(uid, if name == of { "<its claim>" } else { "<another's claim>" })
        });
        alike = alike.replace(self.db.scene().namespace(), "<namespace>");
        // With ten members there is one whose name begins as another's.
        for name in self.members.members.keys().rev() {
            alike = alike.replace(name.as_str(), if name == of { "<member>" } else { "<another member>" });
        }
        alike.replace(self.db.name(), "<cluster>")
    }

    /// A spec, or any part of it.
    fn spec(&self, spec: &Value, of: &str) -> Value {
        match spec {
            Value::String(text) => self.text(text, of).into(),
            Value::Array(items) => items.iter().map(|item| self.spec(item, of)).collect(),
            Value::Object(fields) if fields.get("name").is_some_and(|name| name == TICKET_KEY) => {
                json!({ "name": TICKET_KEY })
            }
            Value::Object(fields) => {
                // A Service without an address says so itself.
                let kept = fields.iter().filter(|(key, value)| {
                    !GIVEN.contains(&key.as_str()) || **value == "None" || **value == json!(["None"])
                });
                kept.map(|(key, value)| (key.clone(), self.spec(value, of))).collect()
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => spec.clone(),
        }
    }

    /// What an object says besides its metadata. What a Secret holds is made by chance; which keys it has is not.
    fn content(&self, object: &Value, of: &str) -> Value {
        let keys: Vec<_> = object["data"].as_object().into_iter().flatten().map(|(key, _)| key).collect();
        json!({ "spec": self.spec(&object["spec"], of), "type": object["type"], "keys": keys })
    }

    /// The ledger, which has to speak of the members as they are.
    fn ledger(&self) -> Result<String> {
        let ledger = self.view.status().ledger.context("there is no ledger")?;
        let cluster = ledger.cluster_id.as_ref().and_then(HexId::get);
        ensure!(cluster == Some(self.members.cluster), "the ledger speaks of cluster {cluster:?}");
        ensure!(ledger.members.keys().eq(self.members.members.keys()), "the ledger's members are {:?}", ledger.members);
        let mut members = Vec::new();
        for (name, entry) in &ledger.members {
            let serial = names::serial(self.db.name(), name).with_context(|| format!("{name} has no serial"))?;
            ensure!(serial < ledger.next_serial, "{name} is a member, and {} comes next", ledger.next_serial);
            let id = entry.id.as_ref().and_then(HexId::get);
            let is_its_own = id == self.members.members.get(name).map(|member| member.id)
                && entry.volume.as_deref() == self.view.volume(name)
                && entry.node.as_deref() == self.view.node(name)
                && entry.mark.is_some();
            ensure!(is_its_own, "the ledger has {entry:?} for {name}");
            members.push(LedgerMember { volume: None, mark: None, node: None, id: None, ..entry.clone() });
        }
        let rest = Ledger { cluster_id: None, next_serial: 0, members: BTreeMap::new(), ..ledger };
        Ok(format!("Ledger {}", json!({ "members": members, "rest": rest })))
    }
}

/// What there is of a cluster once nothing of it is on its way: the ledger, and of each object the kind, the name, the labels
/// and what it says.
async fn remains(scene: &Scene, db: &Cluster) -> Result<Vec<String>> {
    wait_for(&format!("nothing of {} to be on its way", db.name()), PATIENCE, async || {
        let (members, view) = tokio::try_join!(db.membership(), db.view())?;
        let said = scene.kubectl(&["get", KINDS, "-o", "json"]).await?.well()?;
        let listed: Value = serde_json::from_str(&said)?;
        let alike = Alike { db, members: &members, view: &view };
        let mut remains = vec![alike.ledger()?];
        for object in listed["items"].as_array().into_iter().flatten() {
            let metadata = &object["metadata"];
            let kind = object["kind"].as_str().context("an object without a kind")?;
            let name = metadata["name"].as_str().context("an object without a name")?;
            let labels: BTreeMap<&str, &str> = metadata["labels"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(label, value)| (label.as_str(), value.as_str().unwrap_or_default()))
                .collect();
            if !alike.of_cluster(name) && labels.get(names::LABEL_CLUSTER) != Some(&db.name()) {
                continue;
            }
            ensure!(metadata["deletionTimestamp"].is_null(), "{kind} {name} is going");
            let is_former = names::serial(db.name(), name).is_some() && !members.members.contains_key(name);
            ensure!(!is_former, "{kind} {name} belongs to no member");
            let votes = labels.get(names::LABEL_ROLE) == Some(&names::ROLE_VOTER);
            ensure!(kind != "Pod" || votes, "{kind} {name} has no voter's label: {labels:?}");
            let labels: Vec<_> =
                labels.into_iter().map(|(label, value)| format!("{label}={}", alike.name(value))).collect();
            let content = alike.content(object, name);
            remains.push(format!("{kind} {} {} {content}", alike.name(name), labels.join(",")));
        }
        remains.sort();
        Ok(remains)
    })
    .await
}

/// A life: create, scale, heal a pod, heal a volume, shrink. Says what there was before it shrank.
async fn lives(scene: &Scene, db: &Cluster) -> Result<Vec<String>> {
    scene.create(&Wish::new(db.name(), 1)).await?;
    db.settles(1).await.context("create")?;
    db.put("hello", "world").await?;
    db.scale(3).await?;
    let members = db.settles(3).await.context("scale")?;
    let names: Vec<&str> = members.members.keys().map(String::as_str).collect();
    let before = db.identities().await?;
    pods::delete_by_force(db, &names[..1]).await?;
    db.settles(3).await.context("heal a pod")?;
    db.is_the_same_as(&before).await?;
    pods::lose_volumes(db, &names[1..2]).await?;
    db.settles(3).await.context("heal a volume")?;
    let healed = remains(scene, db).await?;
    db.scale(1).await?;
    db.settles(1).await.context("shrink")?;
    Ok(healed)
}
