import { execFileSync, spawn } from 'node:child_process'
import { chmodSync, existsSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { pathToFileURL } from 'node:url'
import t from 'tap'
import { findExecutable, lineSplitter, runTool, ToolError } from '../../core/system/child-process.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import { processStartTime } from '../../core/system/processes.ts'
import { until } from '../support/corral.ts'
import { readCases } from '../support/fixture.ts'

const isRunning = async (pid: number) => (await processStartTime(pid)) !== undefined

/**
 * A tool with children in its process group, and one in its own session, like ninja's compilers in their own group. The
 * tool ends that child when it is asked to end.
 */
const TREE = `
sleep 1000 & a=$!
(sleep 1000 & echo $! > grandchild; wait) & b=$!
perl -e 'setpgrp(0,0); exec "sleep", "1000"' & c=$!
trap 'kill -TERM -$c; exit 1' TERM
echo $a $b $c > children
wait
`

async function startedTree(directory: string): Promise<number[]> {
  const read = (name: string) => readFileSync(join(directory, name), 'utf8').trim()
  await until('the tool tree', () => {
    return ['children', 'grandchild'].every(name => existsSync(join(directory, name)) && read(name) !== '')
  })
  const pids = `${read('children')} ${read('grandchild')}`.split(' ').map(Number)
  for (const pid of pids) if (!(await isRunning(pid))) throw new Error(`${pid} does not run`)
  const third = `${pids[2]}`
  const groupOf = (pid: string) => execFileSync('ps', ['-o', 'pgid=', '-p', pid], { encoding: 'utf8' }).trim()
  await until('the third one to move into its own group', () => groupOf(third) === third)
  return pids
}

t.test('lineSplitter splits lines', async t => {
  /** Pieces and lines, separated by bars. */
  const cases: [pieces: string, lines: string][] = readCases('core-cases.yaml', 'outputLines')
  for (const [pieces, expected] of cases) {
    const lines: string[] = []
    const splitter = lineSplitter(line => lines.push(line))
    for (const piece of pieces.split('|')) splitter.push(piece)
    splitter.end()
    t.equal(lines.join('|'), expected, JSON.stringify(pieces))
  }

  const lengths: number[] = []
  const splitter = lineSplitter(line => lengths.push(line.length))
  for (let piece = 0; piece < 1000; piece++) splitter.push('x'.repeat(1000))
  splitter.end()
  t.ok(lengths.length > 1 && lengths.length < 10, 'a line without an end is split')
  const actual = lengths.reduce((sum, length) => sum + length, 0)
  t.equal(actual, 1e6, 'and no character is lost')
})

t.test('findExecutable finds programs', async t => {
  const directory = t.testdir({ tool: '#!/bin/sh\n', plain: 'x', folder: {} })
  chmodSync(join(directory, 'tool'), 0o755)
  const env = { PATH: `/nowhere:${directory}` }
  t.equal(findExecutable('tool', env), join(directory, 'tool'))
  t.equal(findExecutable('plain', env), undefined, 'a file that is not executable')
  t.equal(findExecutable('folder', env), undefined)
  t.equal(findExecutable('tool', { PATH: '' }, [directory]), join(directory, 'tool'))
  t.equal(findExecutable(join(directory, 'tool'), { PATH: '' }), join(directory, 'tool'))
})

t.test('runTool runs a program to its end', async t => {
  const directory = t.testdir()
  const sh = (script: string, options = {}) => runTool('sh', ['-c', script], { cwd: directory, ...options })

  t.test('runTool returns the output of both streams in order', async t => {
    const seen: string[] = []
    const output = await sh('echo a; echo b >&2; printf "10%%\\r20%%\\r"; cat; echo "$HOME-$X-$MY_TOKEN"', {
      env: { PATH: process.env.PATH, MY_TOKEN: 'secret' },
      variables: { X: 'x' },
      onLine: (line: string, stream: string) => seen.push(`${stream} ${line}`)
    })
    t.same(output, { stdout: ['a', '10%', '20%', '-x-'], stderr: ['b'] })
    t.same(seen.toSorted(), ['stderr b', 'stdout -x-', 'stdout 10%', 'stdout 20%', 'stdout a'])
  })

  t.test('runTool keeps the last lines of long output', async t => {
    const { stdout } = await sh(
      'i=0; while [ $i -lt 20000 ]; do echo "line $i of many that fill the pipe"; i=$((i+1)); done'
    )
    t.equal(stdout.length, 200)
    t.equal(stdout.at(-1), 'line 19999 of many that fill the pipe')
  })

  t.test('runTool passes arguments unchanged', async t => {
    const args = ['a b', '$HOME', "it's", '"', '*', '']
    const { stdout } = await runTool(process.execPath, ['-p', 'JSON.stringify(process.argv.slice(1))', ...args])
    t.same(JSON.parse(stdout[0]!), args)
  })

  t.test('runTool reports failures', async t => {
    const failure = await sh('echo why >&2; exit 3').catch(error => error)
    t.type(failure, ToolError)
    t.match(failure, { exitCode: 3, tail: ['why'], message: 'sh failed with exit code 3.' })
    t.match(await sh('kill -SEGV $$').catch(error => error), {
      exitSignal: 'SIGSEGV',
      message: 'sh was ended by SIGSEGV.'
    })
    t.match(await runTool('no-such-tool', []).catch(error => error), {
      exitCode: undefined,
      message: 'no-such-tool could not be started: it was not found.'
    })
    t.match(await sh('echo begun; sleep 1000', { timeout: 300 }).catch(error => error), {
      message: 'sh was ended after 0.3 s without a result.',
      tail: ['begun']
    })
    const thrown = new Error('of the listener')
    const fails = sh('echo a; sleep 1000', {
      onLine() {
        throw thrown
      }
    })
    t.equal(await fails.catch(error => error), thrown, 'an error of the listener ends the tool')
  })

  t.test('runTool does not wait for processes that a tool leaves behind', async () => {
    const { stdout } = await sh('sleep 1000 & echo $!')
    const left = Number(stdout[0])
    await until('the end of the process that it left', async () => !(await isRunning(left)))
  })

  t.test('runTool ends the whole tree when the signal is aborted', async t => {
    const cwd = t.testdir()
    const abort = new AbortController()
    const running = runTool('sh', ['-c', TREE], { cwd, signal: abort.signal }).catch(error => error)
    const pids = await startedTree(cwd)
    const reason = new Error('enough')
    abort.abort(reason)
    t.equal(await running, reason)
    await until('the end of the tree', async () => !(await Promise.all(pids.map(isRunning))).includes(true))
    t.equal(await sh('true', { signal: abort.signal }).catch(error => error), reason, 'aborted before the start')
  })

  t.test('runTool does not use the working directory, from which Python would import modules', async t => {
    const folder = t.testdir()
    const before = process.cwd()
    process.chdir(folder)
    t.teardown(() => process.chdir(before))
    t.same((await runTool('pwd', [])).stdout, [dirname(process.execPath)])
    t.same((await runTool('pwd', [], { cwd: '.' })).stdout, [folder])
  })

  t.test('runTool ends the whole tree when corral is killed with kill -9', async t => {
    const cwd = t.testdir()
    const module = pathToFileURL(join(packageRoot, 'dist/core/system/child-process.js')).href
    const script = join(cwd, 'corral.mjs')
    writeFileSync(
      script,
      `import { runTool } from ${JSON.stringify(module)}\nawait runTool('sh', ['-c', process.argv[2]], { cwd: '.' })\n`
    )
    const corral = spawn(process.execPath, [script, TREE], { cwd, stdio: 'ignore' })
    const pids = await startedTree(cwd)
    corral.kill('SIGKILL')
    await until('the end of the tree', async () => !(await Promise.all(pids.map(isRunning))).includes(true))
  })
})
