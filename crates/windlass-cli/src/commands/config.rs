//! `windlass config show`: what the server would use, and where each setting comes from.

use serde_json::{Value, json};

use crate::args::ShowArgs;
use crate::exit::{Exit, Outcome};
use crate::output::Out;
use crate::settings::{Setting, Settings};

pub(super) fn show(args: &ShowArgs) -> Outcome {
    let settings = Settings::read(&args.server)?;
    let out = Out::new(args.output.output);
    if !out.is_text() {
        let row = |setting: &Setting| {
            let (value, from) = (setting.shown(), setting.origin.to_string());
            json!({ "name": setting.name, "value": value, "from": from })
        };
        let rows: Vec<Value> = settings.all.iter().map(row).collect();
        out.list(&json!({ "settings": rows }), "settings")?;
        return Ok(Exit::Ok);
    }
    let mut table = out.table(&["SETTING", "VALUE", "FROM"]);
    for setting in &settings.all {
        table.row([out.bold(setting.name), setting.shown(), setting.origin.to_string()]);
    }
    table.print()?;
    Ok(Exit::Ok)
}
