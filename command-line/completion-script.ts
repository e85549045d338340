export const COMPLETION_SHELLS = ['bash', 'zsh', 'fish'] as const

/*
 * Each script calls `corral __complete <words>`, which prints one candidate per line with its description after a tab.
 * The candidates come from the command definitions, so a loaded script works with every later version of corral.
 */

const BASH = `# bash completion of corral
_corral() {
  local words cword line
  COMPREPLY=()
  # Model names contain colons.
  if declare -F _get_comp_words_by_ref >/dev/null; then
    _get_comp_words_by_ref -n : -w words -i cword
  else
    words=("\${COMP_WORDS[@]}")
    cword=$COMP_CWORD
  fi
  while IFS= read -r line; do
    COMPREPLY+=("\${line%%$'\\t'*}")
  done < <("\${words[0]}" __complete -- "\${words[@]:1:cword}" 2>/dev/null </dev/null)
  if declare -F __ltrim_colon_completions >/dev/null; then
    __ltrim_colon_completions "\${words[cword]}"
  fi
}
complete -o default -F _corral corral`

const ZSH = `#compdef corral
_corral() {
  local -a lines candidates
  local line
  lines=("\${(@f)$("\${words[1]}" __complete -- "\${(@)words[2,CURRENT]}" 2>/dev/null </dev/null)}")
  for line in $lines; do
    candidates+=("\${\${line%%$'\\t'*}//:/\\\\:}:\${line#*$'\\t'}")
  done
  if (( $#candidates )); then
    _describe -t corral corral candidates
  else
    _files
  fi
}
if [ "$funcstack[1]" = _corral ]; then
  _corral "$@"
else
  compdef _corral corral
fi`

const FISH = `# fish completion of corral
function __corral_complete
  set -l words (commandline -opc) (commandline -ct)
  command $words[1] __complete -- $words[2..-1] 2>/dev/null </dev/null
end
complete -c corral -f -n 'test -n "$(__corral_complete)"' -a '(__corral_complete)'`

export function completionScript(shell: (typeof COMPLETION_SHELLS)[number]): string {
  return { bash: BASH, zsh: ZSH, fish: FISH }[shell]
}
