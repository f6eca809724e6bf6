//! How often the disruption budget is written in a roll without faults, by an operator that looks after each thing that
//! happens. Checks no property.

use quorate_statemachine::{TemplateHash, Wish};

use crate::{
    config::{Config, Origin, voters},
    faults::Kind,
    glimpse::observe,
    observe::Eyes,
    operator::{Mishap, act, overtake},
    state::{Operator, State},
    versions, wish,
};

/// More looks than any roll takes.
const LOOKS: usize = 200;

/// What the budget says in turn, from what it says before the last wish comes.
fn budgets(config: Config) -> Vec<u8> {
    let config = config.faults(0, &[Kind::Evict]);
    let mut state = config.origin();
    let mut said = vec![state.budget];
    state.wish = u8::try_from(config.wishes.len() - 1).expect("few wishes");
    for look in 0.. {
        assert!(look < LOOKS, "it goes on: {said:?}");
        let before = state.clone();
        plan_and_act(&config, &mut state);
        if said.last() != Some(&state.budget) {
            said.push(state.budget);
        }
        let _ = state.serials().any(|serial| state.progress(&config, serial)) || state.monitor();
        state.settle();
        state.tidy();
        assert_eq!(state.broken, None);
        if state == before {
            break;
        }
    }
    said
}

fn plan_and_act(config: &Config, state: &mut State) {
    observe(config, state, 0, Eyes::Open);
    while let Operator::Acting(_) = state.operators[0] {
        let now = state.clone();
        act(config, state, 0, Mishap::None);
        state.settle();
        state.tidy();
        overtake(&now, state, Some(0), false);
    }
}

#[test]
fn a_roll_writes_the_budget_twice() {
    let new_pods = |wish: &mut Wish| wish.template = TemplateHash(1);
    let restart = |size| Config::new("restart", Origin::Standing(size), [voters(size), wish(size, new_pods)]);
    assert_eq!(budgets(restart(1)), [0]);
    assert_eq!(budgets(restart(3)), [2, 3, 2]);
    assert_eq!(budgets(restart(5)), [4, 5, 4]);
    assert_eq!(budgets(versions("up", 3, &[6, 7])), [2, 3, 2]);
    assert_eq!(budgets(versions("down", 3, &[7, 6])), [2, 3, 2]);
    assert_eq!(budgets(versions("two minors up", 3, &[5, 7])), [2, 3, 2, 3, 2]);
    assert_eq!(budgets(Config::new("at rest", Origin::Standing(3), [voters(3)])), [2]);
}
