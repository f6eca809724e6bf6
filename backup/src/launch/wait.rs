//! The wait: looks for a ticket, holds everything against it, and becomes etcd, or says why not and looks again.

use std::convert::Infallible;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::{spawn_blocking, yield_now};
use tokio::time::timeout;

use super::binary::{self, Binary};
use super::board::{self, Board};
use super::inbox::Inbox;
use super::volume::{Held, Volume};
use super::{Identity, Reason, Refusal, Settings, own_name, ticket_file};
use crate::ticket::{Start, Ticket};

/// How often the ticket's file is looked at: a read of a small file in memory, on the way of every start.
const TICKET_PERIOD: Duration = Duration::from_millis(20);
/// How often a refused ticket is held against the volume again, which may have been mended meanwhile.
const RECHECK_PERIOD: Duration = Duration::from_secs(1);
/// How often a volume is tried whose last user has not ended yet: it ends within moments, and the member is down till then.
const IN_USE_PERIOD: Duration = Duration::from_millis(100);
/// A volume that has not answered by then is reported; it is still waited for.
const VOLUME_DEADLINE: Duration = Duration::from_secs(10);

/// Everything that is needed to become etcd.
struct Cleared {
    ticket: Ticket,
    binary: PathBuf,
    held: Held,
}

/// The last ticket that was refused: not to be tried again before that time unless it changes.
struct Refused {
    text: String,
    again: Instant,
}

/// Behind it the launcher answers. It stays closed until there is something to say: that it waits, it says only once the
/// volume's mark is known, as a ticket is given to whoever waits.
pub struct Door(Option<oneshot::Sender<()>>);

impl Door {
    /// One that is closed.
    pub fn new(opens: oneshot::Sender<()>) -> Self {
        Self(Some(opens))
    }

    fn open(&mut self) {
        if let Some(opens) = self.0.take() {
            // Nobody is there any more to answer.
            let _ = opens.send(());
        }
    }
}

/// Waits until it can become etcd.
pub async fn until_etcd(settings: &Settings, board: &Board, inbox: &Inbox, mut door: Door) -> Infallible {
    let mut binary = Binary::ask(settings.etcd.clone(), settings.memory.clone());
    let volume = Volume::new(settings.volume.clone(), settings.identity.clone());
    let mut greeting = Greeting::Due(Instant::now());
    let mut refused: Option<Refused> = None;
    loop {
        let shown = current(settings, inbox);
        if shown != Ok(None) {
            door.open();
        }
        match shown {
            Ok(Some(text)) if !is_still_refused(refused.as_ref(), &text) => {
                let checked = check(&text, &settings.identity, &mut binary, &volume, board).await;
                // A signal that came meanwhile is heard before: etcd would not learn of it.
                yield_now().await;
                let refusal = match checked {
                    // Checking may have taken seconds: don't follow a ticket that has been taken back meanwhile.
                    Ok(_) if current(settings, inbox).as_ref() != Ok(&Some(text.clone())) => continue,
                    Ok(cleared) => start(&cleared),
                    Err(refusal) => refusal,
                };
                let period = if refusal.reason == Reason::VolumeInUse { IN_USE_PERIOD } else { RECHECK_PERIOD };
                refused = Some(Refused { text, again: Instant::now() + period });
                board.post(refusal);
            }
            Ok(Some(_)) => (),
            Ok(None) => {
                refused = None;
                greeting.go_on(&volume, board, &mut door).await;
                if let Greeting::Done = greeting {
                    board.post(board::no_ticket(&settings.ticket));
                }
                door.open();
            }
            Err(refusal) => {
                refused = None;
                board.post(refusal);
            }
        }
        // Whether a push came or the period ended, the file is looked at first.
        let _ = timeout(TICKET_PERIOD, inbox.arrival()).await;
    }
}

/// Whether an empty volume was marked: before anybody is told that this waits, and never once there is a ticket, as what was
/// on the volume when it was issued may be gone.
enum Greeting {
    Due(Instant),
    Done,
}

impl Greeting {
    async fn go_on(&mut self, volume: &Volume, board: &Board, door: &mut Door) {
        let Self::Due(at) = *self else { return };
        if Instant::now() < at {
            return;
        }
        let volume = volume.clone();
        match answered(move || volume.greet(), board, || door.open()).await {
            Ok(mark) => {
                board.tell_mark(mark);
                *self = Self::Done;
            }
            Err(refusal) => {
                board.post(refusal);
                *self = Self::Due(Instant::now() + RECHECK_PERIOD);
            }
        }
    }
}

/// The ticket that counts now: the file's, or a pushed one as long as the file has never shown any.
fn current(settings: &Settings, inbox: &Inbox) -> Result<Option<String>, Refusal> {
    match ticket_file::read(&settings.ticket) {
        Ok(shown) => Ok(inbox.reconcile(shown)),
        Err(refusal) => {
            inbox.close();
            Err(refusal)
        }
    }
}

fn is_still_refused(refused: Option<&Refused>, text: &str) -> bool {
    refused.is_some_and(|refused| refused.text == text && Instant::now() < refused.again)
}

/// Holds a ticket against everything that it names, in the order from what costs nothing to what changes the volume. A name is
/// waited for last: what refuses a ticket is told at once, and looked at again without asking DNS each time.
async fn check(
    text: &str,
    identity: &Identity,
    binary: &mut Binary,
    volume: &Volume,
    board: &Board,
) -> Result<Cleared, Refusal> {
    let bad = |fault: crate::ticket::TicketError| Refusal::new(Reason::BadTicket, fault.to_string());
    let ticket = Ticket::parse(text).map_err(bad)?;
    is_for(&ticket, identity)?;
    ticket.check_flags(&volume.data_dir().to_string_lossy()).map_err(bad)?;
    let binary = binary.demand(&ticket.version).await?;
    let (volume, start, mark) = (volume.clone(), ticket.start, ticket.mark.clone());
    let held = answered(move || volume.admit(start, mark.as_ref()), board, || ()).await?;
    match ticket.start {
        Start::Create => own_name::is_known(&ticket.flags).await,
        // With data etcd starts whatever it is called, and its peers try again.
        Start::Restored | Start::Resume => {}
    }
    Ok(Cleared { ticket, binary, held })
}

/// Demands that the ticket is for this pod.
fn is_for(ticket: &Ticket, Identity { member, volume }: &Identity) -> Result<(), Refusal> {
    if ticket.member != *member {
        let message = format!("the ticket is for member {}, this pod is {member}", ticket.member);
        return Err(Refusal::new(Reason::OtherMember, message));
    }
    if ticket.volume != *volume {
        let message = format!("the ticket is for volume {}, this pod has {volume}", ticket.volume);
        return Err(Refusal::new(Reason::OtherVolume, message));
    }
    Ok(())
}

/// Asks the volume, on a thread of its own: one that hangs must stop neither the report nor SIGTERM. Calls `slow` when that is
/// told.
async fn answered<T: Send + 'static>(
    ask: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
    board: &Board,
    slow: impl FnOnce(),
) -> Result<T, Refusal> {
    let mut asking = spawn_blocking(ask);
    let asked = if let Ok(asked) = timeout(VOLUME_DEADLINE, &mut asking).await {
        asked
    } else {
        let message = format!("the volume has not answered for {VOLUME_DEADLINE:?}");
        board.post(Refusal::new(Reason::VolumeUnreadable, message));
        slow();
        asking.await
    };
    asked.unwrap_or_else(|fault| {
        Err(Refusal::new(Reason::VolumeUnreadable, format!("failed to look at the volume: {fault}")))
    })
}

/// The last step: returns only if it fails.
fn start(Cleared { ticket, binary, held }: &Cleared) -> Refusal {
    if let Err(fault) = held.keep_across_exec() {
        return Refusal::new(Reason::VolumeUnreadable, format!("failed to keep the volume's lock: {fault}"));
    }
    let Ticket { start, member, volume, mark: _, version, flags } = ticket;
    tracing::info!(%member, %volume, %version, binary = %binary.display(), "{start}: becoming etcd");
    // Every other descriptor closes at that moment, the listener too: etcd takes over its port.
    binary::become_etcd(binary, flags)
}
