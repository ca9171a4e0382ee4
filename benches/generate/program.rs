//! A program that never was: functions in files, and who calls whom from which line.

use std::collections::HashMap;

use tachyon_jsonl::protocol::message::{FrameDef, StrDef};

use super::random::Random;

const FUNCTIONS: usize = 4000;
const FUNCTIONS_OF_A_FILE: usize = 18;
/// How far a callee that is no common helper is from its caller.
const NEAR: usize = 60;

const FOLDERS: [&str; 3] = ["/usr/lib/python3.15", "/srv/app/src", "/srv/venv/lib/python3.15/site-packages"];
const VERBS: &str = "parse load dump get set read write open close send recv handle dispatch render build \
    encode decode run resolve match find merge split visit emit flush apply check update query commit fetch \
    bind call wait schedule iter next init make copy walk scan filter map reduce";
const NOUNS: &str = "request response session node tree token stream buffer cache index table row column \
    value record field schema model view route event loop task future socket header body template block \
    line item key";

/// The static call graph, and the definitions of its frames.
pub struct Program {
    pub functions: Vec<Function>,
    /// Every function once, the commonly called ones first.
    pub by_heat: Vec<usize>,
    pub gc: u32,
    pub native: u32,
    pub strings: StrDef,
    pub frames: FrameDef,
}

pub struct Function {
    /// Frames of its calls, and the functions that are called.
    pub sites: Vec<(u32, usize)>,
    /// Frames of its other lines.
    pub leaves: Vec<u32>,
}

impl Program {
    pub fn new(random: &mut Random) -> Self {
        let verbs: Vec<&str> = VERBS.split_whitespace().collect();
        let nouns: Vec<&str> = NOUNS.split_whitespace().collect();
        let mut definitions = Definitions::default();
        let paths: Vec<u32> = (0..=FUNCTIONS / FUNCTIONS_OF_A_FILE)
            .map(|file| {
                let (folder, package) = (random.any(&FOLDERS), random.any(&nouns));
                let (verb, noun) = (random.any(&verbs), random.any(&nouns));
                definitions.string(format!("{folder}/{package}s/{verb}_{noun}_{file}.py"))
            })
            .collect();
        let mut by_heat: Vec<usize> = (0..FUNCTIONS).collect();
        random.shuffle(&mut by_heat);
        let functions = (0..FUNCTIONS)
            .map(|index| {
                let path = paths[index / FUNCTIONS_OF_A_FILE];
                let name = definitions.string(name(random, &verbs, &nouns));
                let first = 10 + index % FUNCTIONS_OF_A_FILE * 40 + random.range(0, 20);
                let mut frame = |random: &mut Random, line| definitions.frame(path, name, line, random);
                let calls = 1 + random.exponential(0.45).min(7);
                let sites = (0..calls)
                    .map(|call| (frame(random, first + 3 * call), callee(random, index, &by_heat)))
                    .collect();
                let others = 1 + random.exponential(0.4).min(9);
                let leaves = (0..others).map(|other| frame(random, first + 3 * other + 1)).collect();
                Function { sites, leaves }
            })
            .collect();
        let gc = definitions.special("<GC>");
        let native = definitions.special("<native>");
        let Definitions { strings, frames, .. } = definitions;
        Program { functions, by_heat, gc, native, strings, frames }
    }
}

fn name(random: &mut Random, verbs: &[&str], nouns: &[&str]) -> String {
    let plain = format!("{}_{}", random.any(verbs), random.any(nouns));
    match random.unit() {
        kind if kind < 0.35 => {
            format!("{}{}.{plain}", capital(random.any(nouns)), capital(random.any(nouns)))
        }
        kind if kind < 0.42 => format!("{plain}.<locals>.<lambda>"),
        kind if kind < 0.45 => format!("{plain}.<locals>.<genexpr>"),
        _ => plain,
    }
}

fn capital(word: &str) -> String {
    word[..1].to_uppercase() + &word[1..]
}

fn callee(random: &mut Random, caller: usize, by_heat: &[usize]) -> usize {
    if random.chance(0.35) {
        by_heat[random.rank(FUNCTIONS)]
    } else {
        random.range(caller.saturating_sub(NEAR), (caller + NEAR).min(FUNCTIONS))
    }
}

#[derive(Default)]
struct Definitions {
    strings: StrDef,
    frames: FrameDef,
    known: HashMap<String, u32>,
}

impl Definitions {
    fn string(&mut self, value: String) -> u32 {
        let next = self.known.len() as u32;
        *self.known.entry(value).or_insert_with_key(|value| {
            self.strings.str_id.push(next);
            self.strings.value.push(value.clone());
            next
        })
    }

    fn frame(&mut self, path: u32, function: u32, line: usize, random: &mut Random) -> u32 {
        let line = line as i32;
        let end_line = line + i32::from(random.chance(0.12));
        let col = 4 * random.range(1, 5) as i32;
        let end_col = col + random.range(6, 60) as i32;
        self.add(path, function, [Some(line), Some(end_line), Some(col), Some(end_col)])
    }

    /// A frame that stands for something other than a line of Python.
    fn special(&mut self, name: &str) -> u32 {
        let path = self.string("~".to_string());
        let function = self.string(name.to_string());
        self.add(path, function, [None; 4])
    }

    fn add(&mut self, path: u32, function: u32, location: [Option<i32>; 4]) -> u32 {
        let frames = &mut self.frames;
        let id = frames.frame_id.len() as u32;
        frames.frame_id.push(id);
        frames.path_str_id.push(path);
        frames.func_str_id.push(function);
        let columns = [&mut frames.line, &mut frames.end_line, &mut frames.col, &mut frames.end_col];
        for (column, value) in columns.into_iter().zip(location) {
            column.get_or_insert_default().push(value);
        }
        id
    }
}
