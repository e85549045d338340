#!/usr/bin/env node
// The command `corral`: a file of its own, so that npm can link it before a checkout is compiled.
import './node-version.mjs'
import { existsSync } from 'node:fs'

// Source maps slow down every start, and only stack traces need them.
if (process.env.CORRAL_DEBUG) process.setSourceMapsEnabled(true)
const main = new URL('../dist/command-line/main.js', import.meta.url)
if (!existsSync(main)) await (await import('./compile.mjs')).compile()
await import(main.href)
