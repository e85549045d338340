# fish completion of corral
function __corral_complete
  set -l words (commandline -opc) (commandline -ct)
  command $words[1] __complete -- $words[2..-1] 2>/dev/null </dev/null
end
complete -c corral -f -n 'test -n "$(__corral_complete)"' -a '(__corral_complete)'
