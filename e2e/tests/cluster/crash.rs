//! The operator crashes right after its n-th write, for every n of a whole create-scale-heal run: the end is the same as
//! without.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use anyhow::{Context as _, Result, ensure};
use quorate_e2e::faults::operator::Operator;
use quorate_e2e::faults::pods;
use quorate_e2e::scene::{Cluster, PATIENCE, Scene, Stage, Wish, play, play_side_by_side, thorough, wait_for};

/// The writes after which it crashes in `make test`: while it grows.
const SAMPLE: [u32; 1] = [30];
/// More writes than any run has: the loop ends when one went through without a crash.
const MOST: u32 = 400;
/// Every run has more writes than this: for four members 4 claims, 4 Secrets, 4 tickets, 4 labels and 5 pods, as one
/// comes again; 3 Secrets of the cluster, 2 Services and a budget; in etcd 3 additions, 3 promotions and a removal; and
/// the ledger before the seed, the growth and the replacement. Who does not crash by then never does.
const LEAST: u32 = 35;
/// Runs at a time, each with an operator of its own.
const LANES: u32 = 4;

/// The numbers of writes that are still to be tried, and how often there was a crash.
#[derive(Default)]
struct Tries {
    left: RefCell<VecDeque<u32>>,
    crashes: Cell<u32>,
}

impl Tries {
    fn next(&self) -> Option<u32> {
        self.left.borrow_mut().pop_front()
    }

    fn tell(&self, number: u32, crashed: bool) -> Result<()> {
        if crashed {
            self.crashes.set(self.crashes.get() + 1);
            return Ok(());
        }
        ensure!(number > LEAST, "the operator did not crash after write {number}, and every run has more than {LEAST}");
        eprintln!("a whole run has fewer than {number} writes");
        self.left.borrow_mut().clear();
        Ok(())
    }
}

#[tokio::test]
async fn a_crash_after_any_write_changes_nothing_in_the_end() -> Result<()> {
    play("crash_after_writes", Stage::Alone, async |scene| {
        let installed = Operator::new(scene.client());
        let numbers: VecDeque<u32> = if thorough() { (1..MOST).collect() } else { SAMPLE.into() };
        let lanes = LANES.min(u32::try_from(numbers.len())?);
        let tries = Tries { left: numbers.into(), ..Tries::default() };
        let lane = async |_, scene: &Scene| {
            let runs = async |operator: &Operator| {
                while let Some(number) = tries.next() {
                    let crashed = run(scene, operator, number).await;
                    tries.tell(number, crashed.with_context(|| format!("a crash after write {number}"))?)?;
                }
                Ok(())
            };
            installed.of_its_own(scene, runs).await
        };
        installed.away_during(async || play_side_by_side("crash", lanes, lane).await).await?;
        ensure!(tries.crashes.get() > 0, "the operator never crashed: nothing was shown");
        eprintln!("{} crashes, each with the same end", tries.crashes.get());
        Ok(())
    })
    .await
}

/// One whole run with an operator that crashes somewhere on the way. Whether it did.
async fn run(scene: &Scene, operator: &Operator, number: u32) -> Result<bool> {
    let db = scene.cluster(&format!("db{number}"));
    let crashed = operator
        .crashing_during(number, async || {
            let finished = Cell::new(false);
            let acts = async {
                let acted = acts(scene, &db).await;
                finished.set(true);
                acted
            };
            let watch = operator.crashes_once(async || {
                ensure!(finished.get(), "neither yet");
                Ok(())
            });
            let (crashed, acted) = tokio::join!(watch, acts);
            acted?;
            crashed
        })
        .await?;
    db.settles(3).await?;
    db.reads("hello", "world").await?;
    db.until("three claims for three members", PATIENCE, |view| {
        ensure!(view.claims.len() == 3, "there are {}", view.claims.len());
        Ok(())
    })
    .await?;
    db.delete().await?;
    wait_for("its claims to be gone", PATIENCE, async || scene.has_no_claims().await).await?;
    Ok(crashed)
}

/// The run: create, scale, heal a pod, heal a volume.
async fn acts(scene: &Scene, db: &Cluster) -> Result<()> {
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
    db.settles(3).await.context("heal a volume").map(drop)
}
