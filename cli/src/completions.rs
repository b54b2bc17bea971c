use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

/// Print a shell's completion script
#[derive(clap::Args)]
#[command(after_help = "Install it:\n\
\x20 bash: tollgate completions bash > ~/.local/share/bash-completion/completions/tollgate\n\
\x20 zsh:  tollgate completions zsh > \"${fpath[1]}/_tollgate\"\n\
\x20 fish: tollgate completions fish > ~/.config/fish/completions/tollgate.fish")]
pub(crate) struct Args {
    shell: Shell,
}

impl Args {
    pub(crate) fn run<C: CommandFactory>(self) -> anyhow::Result<ExitCode> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut C::command(), "tollgate", &mut script);
        crate::output::say(String::from_utf8(script)?)?;
        Ok(ExitCode::SUCCESS)
    }
}
