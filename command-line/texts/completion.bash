# bash completion of corral
_corral() {
  local words cword line
  COMPREPLY=()
  # Model names contain colons.
  if declare -F _get_comp_words_by_ref >/dev/null; then
    _get_comp_words_by_ref -n : -w words -i cword
  else
    words=("${COMP_WORDS[@]}")
    cword=$COMP_CWORD
  fi
  while IFS= read -r line; do
    COMPREPLY+=("${line%%$'\t'*}")
  done < <("${words[0]}" __complete -- "${words[@]:1:cword}" 2>/dev/null </dev/null)
  if declare -F __ltrim_colon_completions >/dev/null; then
    __ltrim_colon_completions "${words[cword]}"
  fi
}
complete -o default -F _corral corral
