#compdef corral
_corral() {
  local -a lines candidates
  local line
  lines=("${(@f)$("${words[1]}" __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null </dev/null)}")
  for line in $lines; do
    candidates+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
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
fi
