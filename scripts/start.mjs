// `npm start`: compiles corral, then serves. npm passes signals only to the shell that it started, so the end of that
// shell counts as a request to stop.
import './node-version.mjs'
import { compile } from './compile.mjs'

const shell = process.ppid
await compile()
const watch = setInterval(() => {
  if (process.ppid === shell) return
  clearInterval(watch)
  process.kill(process.pid, 'SIGTERM')
}, 500).unref()
process.argv.splice(2, 0, 'serve')
await import('./corral.mjs')
