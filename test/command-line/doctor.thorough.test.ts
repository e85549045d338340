import { readFileSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { join } from 'node:path'
import { Ajv } from 'ajv'
import type { Test } from 'tap'
import t from 'tap'
import { emptyReport, findProblems, formatDoctor } from '../../command-line/commands/doctor.ts'
import { type DoctorReport, DoctorReportSchema } from '../../command-line/doctor-schema.ts'

import { packageRoot, version } from '../../core/system/package-info.ts'
import { builtInKinds } from '../../runtimes/llama-cpp/kinds/index.ts'
import { rankRuntimes } from '../../runtimes/llama-cpp/ranking.ts'
import { BUNDLED_LISTING } from '../../runtimes/llama-cpp/sources/release.ts'
import { renderDoctorDocs } from '../../scripts/doctor-docs.ts'
import {
  answers,
  INTEL_GRAPHICS,
  PLAIN,
  RADEON_AGENT,
  type Recorded,
  recording,
  writeMachine
} from '../plugins/running/hardware/support.ts'
import { amd, machine, nvidia } from '../runtimes/llama-cpp/ranking/machines.ts'
import { startCorral } from '../support/corral.ts'
import { listen } from '../support/listen.ts'
import { corral, newHome } from './command.ts'

const isReport = new Ajv({ strict: false, allErrors: true }).compile(JSON.parse(JSON.stringify(DoctorReportSchema)))

function checked(t: Test, stdout: string): DoctorReport {
  const report = JSON.parse(stdout)
  t.ok(isReport(report), JSON.stringify(isReport.errors))
  return report
}

/** A data directory whose configuration disables the network. */
function offlineHome(t: Test, more = ''): string {
  const home = newHome(t)
  writeFileSync(join(home, 'config.yaml'), `runtimes: { release: { api_url: "http://127.0.0.1:9" } }\n${more}`)
  return home
}

/** Runs the built command on a recorded machine and returns the report. */
async function examine(t: Test, recorded: Recorded, home = offlineHome(t)) {
  const [root, path] = writeMachine(t.testdir(), recorded)
  const ended = await corral(['doctor', '--json', '--no-build', '--sysroot', root], { home, env: { PATH: path } })
  t.ok(ended.stdout, ended.stderr)
  const report = checked(t, ended.stdout)
  const order = report.ranking.filter(({ usable }) => usable).map(({ runtime }) => runtime)
  const kind = (name: string) => report.ranking.find(({ runtime }) => runtime === name)!
  return { ...ended, report, order: order.join(' '), kind }
}

const H100 = answers({
  '*--query-gpu*':
    'index, name, uuid, pci.bus_id, pci.device_id, driver_version, memory.total [MiB], memory.free [MiB], compute_cap, mig.mode.current\n' +
    '0, NVIDIA H100 80GB HBM3, GPU-1, 00000000:0A:00.0, 0x233010DE, 580.95.05, 81559 MiB, 81002 MiB, 9.0, Disabled',
  '*--version*': 'NVIDIA-SMI version  : 580.95.05\nDRIVER version      : 580.95.05\nCUDA Version        : 13.0'
})

t.test('doctor reports findings for recorded machines', async t => {
  const cases: [
    what: string,
    recorded: Recorded,
    order: string,
    check?: (found: Awaited<ReturnType<typeof examine>>) => void
  ][] = [
    [
      'one H100, driver 580',
      { programs: { 'nvidia-smi': H100 } },
      'cuda-13 cuda-12 vulkan cpu',
      ({ report, kind, code }) => {
        t.equal(code, 0)
        t.match(report, {
          release: { tag: BUNDLED_LISTING.tag, list: 'snapshot' },
          state: 'idle',
          problems: [],
          hardware: {
            gpus: [{ id: 'nvidia:0', name: 'NVIDIA H100 80GB HBM3', architecture: '9.0', totalMemory: 81559 * 2 ** 20 }]
          }
        })
        t.equal(report.chosen, undefined)
        t.match(kind('cuda-13'), {
          gpus: ['nvidia:0'],
          reasons: [/NVIDIA H100 80GB HBM3 \(driver 580\.95\.05, CUDA up to 13\.0\)/],
          assets: [/^llama-b\d+-bin-ubuntu-cuda-13\.\d+-(x64|arm64)\.tar\.gz$/, /^cudart-llama-/]
        })
        t.match(kind('rocm'), { score: 0, usable: false, reasons: ['No AMD GPU was found.'] })
      }
    ],
    [
      'a card with driver 550',
      { programs: { 'nvidia-smi': recording('nvidia/smi-table-4070tis-550.txt') } },
      'cuda-12 vulkan cpu',
      ({ report, kind }) => {
        t.equal(report.hardware?.gpus.length, 1)
        t.match(kind('cuda-13'), { score: 0, missing: [{ what: /580 or newer; 550\.127\.05/, fix: /driver 580/ }] })
      }
    ],
    [
      'a broken driver',
      { programs: { 'nvidia-smi': answers({ '*': recording('nvidia/smi-err-nvml-version-mismatch.txt') }, 18) } },
      'cpu',
      ({ report, kind, code }) => {
        t.equal(code, 1, 'it wants help')
        t.match(report.hardware?.problems, [{ code: 'driver_mismatch', advice: /reboot/ }])
        t.match(report.problems, [/have different versions.*reboot/])
        for (const name of ['cuda-12', 'cuda-13']) {
          t.match(kind(name), { score: 0, missing: [{ what: /different versions/, fix: /reboot/ }] })
        }
      }
    ],
    [
      'a Radeon',
      { files: {}, programs: { rocminfo: RADEON_AGENT } },
      'rocm vulkan cpu',
      ({ report }) => t.match(report.hardware?.gpus, [{ vendor: 'amd', architecture: 'gfx1100' }])
    ],
    [
      'graphics of the processor only',
      { files: { ...PLAIN, ...INTEL_GRAPHICS } },
      'vulkan sycl cpu',
      ({ kind }) => t.match(kind('vulkan').missing, [{ what: /libvulkan/, fix: /apt install libvulkan1/ }])
    ],
    [
      'none',
      { files: PLAIN },
      'cpu',
      ({ report, code }) => {
        t.same([code, report.problems, report.hardware?.gpus], [0, [], []])
        t.match(report.hardware?.cpu.model, /i7-1165G7/)
      }
    ]
  ]
  for (const [what, recorded, order, check] of cases) {
    await t.test(what, async t => {
      const found = await examine(t, recorded)
      t.equal(found.order, order)
      check?.(found)
    })
  }
})

t.test('doctor survives probes that hang or print garbage', async t => {
  const home = offlineHome(t, 'hardware: { probe_timeout: 300ms }\n')
  const programs = {
    'nvidia-smi': '#!/bin/sh\nexec /bin/sleep 100\n',
    vulkaninfo: '#!/bin/sh\nexit 134\n',
    rocminfo: '\u001b[2J\u0000\u0007\n'.repeat(100)
  }
  const { report, order } = await examine(t, { files: PLAIN, programs }, home)
  t.equal(order, 'cpu')
  t.match(
    report.hardware?.probes.find(({ probe }) => probe === 'nvidia-smi'),
    { outcome: 'timed_out' }
  )
})

t.test('doctor reports findings for this machine', async t => {
  const home = offlineHome(t)
  t.match(
    (await corral(['doctor', '--no-build'], { home })).stdout,
    /Hardware\n.*Processor only.*not searched for yet/s
  )
  const { stdout, stderr } = await corral(['doctor', '--json'], { home })
  const report = checked(t, stdout)
  t.match(report, { corral: version, data: { home, holder: null } })
  t.match(report, { state: 'ready', chosen: { source: 'system', executables: { server: /llama-server/ } } }, stderr)
  t.match(
    report.attempts.find(({ outcome }) => outcome === 'chosen'),
    { source: 'system' }
  )
  t.ok(report.models!.free > 0 && report.hardware!.memory.total > 0 && report.hardware!.cpu.threads > 0)
  t.match(await corral(['doctor', '--sysroot', join(home, 'nowhere')], { home }), {
    code: 2,
    stderr: /nowhere is not a folder\. Give --sysroot a folder/
  })
})

t.test('doctor reports an unusable data directory', async t => {
  const home = newHome(t)
  writeFileSync(join(home, 'file'), '')
  const ended = await corral(['doctor', '--json', '--no-build'], {
    home,
    env: { CORRAL_HOME: join(home, 'file', 'x') }
  })
  t.equal(ended.code, 1)
  const { problems, models } = checked(t, ended.stdout)
  t.match(problems[0], /data directory .*file.x cannot be used: .*A file is in the way.*CORRAL_HOME/)
  t.equal(problems.filter(problem => problem === problems[0]).length, 1, 'once')
  t.ok(models!.free > 0, 'the other parts are still examined')
})

t.test('doctor uses the findings of a running server', async t => {
  const server = await startCorral(t)
  const { home } = server
  const asked = checked(t, (await corral(['doctor', '--json'], { home })).stdout)
  t.match(asked, { data: { holder: { pid: server.process.pid, address: server.url } }, state: 'ready', chosen: {} })
  const own = await server.json('/api/runtimes', undefined, { local: true })
  t.same(own.body.chosen, asked.chosen, "the server's findings")
  t.same(own.body.ranking, asked.ranking)

  const other = await examine(t, { programs: { 'nvidia-smi': H100 } }, home)
  t.match(other.order, /^cuda-13 /, 'another root is examined by the command itself')
  t.equal(other.report.data?.holder?.pid, server.process.pid)
  t.equal((await server.json('/api/health')).status, 200)
})

t.test('doctor reports a server of another version or that cannot be reached', async t => {
  // This server answers health checks only. Like an older corral, it has no ranking.
  const silent = createServer(({ url }, response) => {
    if (url === '/api/health') response.end('{"status":"ok"}')
    else response.end('{"state":"ready","sources":[]}')
  })
  const port = await listen(t, silent)
  const home = offlineHome(t)
  const { stdout } = await corral(['doctor', '--json', '--no-build'], { home, env: { CORRAL_PORT: String(port) } })
  t.match(checked(t, stdout), { state: 'idle', ranking: Array, problems: [/has a different version/] })
  const elsewhere = await corral(['doctor', '--json', '--no-build', '--host', '192.0.2.1'], { home })
  t.equal(elsewhere.code, 1)
  t.match(checked(t, elsewhere.stdout), { ranking: [], problems: [/No server is running at http:\/\/192\.0\.2\.1/] })
})

t.test('findProblems selects the serious findings, and formatDoctor prints them', async t => {
  const names = BUNDLED_LISTING.names
  const report = (hardware: ReturnType<typeof machine>, more: Partial<DoctorReport> = {}): DoctorReport => ({
    ...emptyReport(),
    hardware,
    ranking: rankRuntimes(builtInKinds, hardware, names),
    ...more
  })
  const build = {
    id: 'b',
    kind: 'cpu' as const,
    source: 'release',
    version: '1',
    directory: '/b',
    executables: { server: '/b/llama-server' },
    digest: 'd',
    origin: 'o',
    devices: []
  }
  const card = nvidia('NVIDIA L4', '8.9', '610.1', '13.4')
  const unloaded = { code: 'driver_not_loaded' as const, subject: 'amd:0', message: 'It sleeps.', advice: 'Wake it.' }
  const idle = { ...build, warnings: ['NVIDIA L4 is idle.'] }
  const old = machine([amd('AMD Instinct MI25', 'gfx900')], {
    probes: [{ probe: 'vulkaninfo', outcome: 'ok', duration: 1 }]
  })
  const asleep = machine([amd('AMD Radeon', 'gfx1100', { usable: false })], { problems: [unloaded] })
  const silent = machine([], { problems: [{ code: 'probe_failed', subject: 'x', message: 'no' }] })
  const cases: [what: string, report: DoctorReport, problems: RegExp[]][] = [
    ['nothing', report(machine([])), []],
    ['no GPU, running on the processor', report(machine([]), { chosen: build }), []],
    ['a GPU that is used', report(machine([card]), { chosen: { ...build, kind: 'cuda' } }), []],
    ['a silent fallback', report(machine([card]), { chosen: build }), [/on the processor although CUDA 13/]],
    ['a fallback that the smoke test explains', report(machine([card]), { chosen: idle }), [/^NVIDIA L4 is idle\.$/]],
    ['no build', report(machine([]), { state: 'failed' }), [/No llama\.cpp build works on this machine\.$/]],
    [
      'a GPU that no build can use',
      report(old),
      [/has a GPU \(AMD Instinct MI25\), but no llama\.cpp build can use it/]
    ],
    ['a driver that is not loaded', report(asleep), [/It sleeps\. Wake it\./]],
    ['a probe that failed', report(silent), []]
  ]
  for (const [what, given, problems] of cases) {
    const found = findProblems(given)
    t.equal(found.length, problems.length, `${what}: ${found.join(' ')}`)
    t.match(found, problems, what)
  }

  const attempt = { runtime: 'cuda-13', source: 'source', description: 'Built here.', outcome: 'failed' as const }
  const text = formatDoctor(
    report(machine([nvidia('Evil\u001b[2J Card', '8.9', '550.1', '12.4')]), {
      state: 'failed',
      release: { tag: 'b1', list: 'live' },
      chosen: build,
      attempts: [{ ...attempt, reasons: ['cmake is missing\ninstall it: apt install cmake'] }],
      installed: [{ build, provenAt: '2026-01-01T00:00:00Z', size: 5e6, state: 'failed', failure: 'it crashed' }],
      problems: ['No build.']
    })
  )
  t.notMatch(text, '\u001b[2J')
  for (const pattern of [
    /nvidia:0 {3}Evil\[2J Card: discrete, 8\.9, driver 550\.1, CUDA up to 12\.4, reached through cuda/,
    /best first \(release b1\)/,
    /1\. CUDA 12 \(NVIDIA\) +score 95\n/,
    /- {2}CUDA 13 \(NVIDIA\) .*\n {5}! CUDA 13 needs the NVIDIA driver 580.*\n {7}→ Install driver 580/,
    /1\. cuda-13 from source: failed\. Built here\.\n {5}- cmake is missing\n {5}- install it: apt install cmake/,
    /b: failed, 1, 5\.0 MB, it crashed/,
    /! No build\.\n\nThere are problems\. See above/
  ]) {
    t.match(text, pattern)
  }
  t.match(formatDoctor(emptyReport()), 'No problem so far.')
  const wrong = { file: null, problems: [{ where: 'c.yaml:1:1', message: 'odd' }] }
  t.match(formatDoctor({ ...emptyReport(), config: wrong }), /c\.yaml:1:1 {2}odd.*There are problems\. See above/s)
})

t.test('docs/doctor.md and doctor.schema.json match the schema', async t => {
  const shown = join(packageRoot, 'docs')
  for (const [name, text] of Object.entries(renderDoctorDocs())) {
    t.equal(readFileSync(join(shown, name), 'utf8'), text, `run "npm run docs:write" for docs/${name}`)
    t.notMatch(text, /\| {2}\|$/m, 'every field has a description')
  }
  const schema = JSON.parse(renderDoctorDocs()['doctor.schema.json'])
  t.same(schema.required, ['corral', 'node', 'platform', 'config', 'ranking', 'attempts', 'installed', 'problems'])
})
