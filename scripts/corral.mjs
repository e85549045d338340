#!/usr/bin/env node
// The command `corral`. A separate file, so that npm can link it before a checkout is compiled.
import './node-version.mjs'
import { existsSync } from 'node:fs'
import module from 'node:module'
import { homedir } from 'node:os'
import { join } from 'node:path'

// Source maps slow down every start, and only stack traces need them.
if (process.env.CORRAL_DEBUG) process.setSourceMapsEnabled(true)
const main = new URL('../dist/bundle/main.js', import.meta.url)
if (!existsSync(main)) await (await import('./compile.mjs')).compile()
// Caches V8's compiled code (Node.js 22.8 and later). The folder must belong to the user, because its content is
// executed.
module.enableCompileCache?.(join(cacheFolder(), 'corral', 'compiled'))
await import(main.href)

function cacheFolder() {
  const { env, platform } = process
  if (platform === 'win32') return env.LOCALAPPDATA ?? join(homedir(), 'AppData', 'Local')
  if (platform === 'darwin') return join(homedir(), 'Library', 'Caches')
  return env.XDG_CACHE_HOME || join(homedir(), '.cache')
}
