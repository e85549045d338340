// `npm start`: compiles corral, then serves, all in one process, so that a signal to npm reaches the server. (npm runs
// no "prestart" here, since .npmrc switches scripts of packages off.)
import { compile } from './compile.mjs'

compile()
process.argv.splice(2, 0, 'serve')
await import('../dist/core/command-line/main.js')
