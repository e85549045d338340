import { bytesOf, type Findings, freeOf, known, type Sighting } from '../findings.ts'
import { pciAddress, pciId } from '../pci/address.ts'
import { soldAs } from '../pci/pci-names.ts'
import { type Probe, ProbeFailure } from '../probe.ts'
import { gfxName } from './gfx.ts'
import { foldPartitions } from './kfd-topology.ts'

/* What rocm-smi prints: JSON, CSV or text, each with the same names of fields, which differ from version to version. */

/** Fields of each card, by its name there. */
type Cards = Map<string, Map<string, string>>

function sightingOf(fields: ReadonlyMap<string, string>): Sighting {
  const field = (...names: string[]) =>
    names
      .map(name => fields.get(name.toLowerCase()))
      .find(value => value !== undefined && value !== '' && value !== 'N/A')
  const totalMemory = bytesOf(field('VRAM Total Memory (B)') ?? '')
  const used = field('VRAM Total Used Memory (B)')
  const name = field('Card Series', 'Device Name', 'Card series', 'Product Name')
  return {
    vendor: 'amd',
    ...known({
      // Some versions write the id where a name belongs.
      name: name !== undefined && !/^0x/i.test(name) ? soldAs('amd', name) : undefined,
      pciId: pciId(field('Device ID', 'GPU ID')) ?? pciId(field('Card Model')),
      pciBus: pciAddress(field('PCI Bus')),
      architecture: gfxName(field('GFX Version')),
      totalMemory,
      freeMemory: freeOf(totalMemory, used === '0' ? 0 : bytesOf(used ?? ''))
    }),
    api: 'rocm',
    usable: true
  }
}

function jsonCards(text: string): Cards | undefined {
  // Warnings may stand before it.
  const start = text.indexOf('{')
  if (start < 0) return undefined
  let value: unknown
  try {
    value = JSON.parse(text.slice(start, text.lastIndexOf('}') + 1))
  } catch {
    return undefined
  }
  if (typeof value !== 'object' || value === null) return undefined
  const cards: Cards = new Map()
  for (const [key, fields] of Object.entries(value)) {
    if (!/^(card|gpu)\d+$/i.test(key) || typeof fields !== 'object' || fields === null) continue
    cards.set(key, new Map(Object.entries(fields).map(([name, field]) => [name.toLowerCase(), String(field)])))
  }
  return cards
}

function csvCards(text: string): Cards | undefined {
  const lines = text.split(/\r?\n/)
  const start = lines.findIndex(line => /^device,/i.test(line))
  if (start < 0) return undefined
  const columns = lines[start]!.split(',').map(column => column.trim().toLowerCase())
  const cards: Cards = new Map()
  for (const line of lines.slice(start + 1)) {
    const cells = line.split(',').map(cell => cell.trim())
    // A comma in a name moves what follows: nothing of such a line can be trusted.
    if (!/^(card|gpu)\d+$/i.test(cells[0]!) || cells.length !== columns.length) continue
    cards.set(cells[0]!, new Map(columns.map((column, at) => [column, cells[at]!])))
  }
  return cards
}

function textCards(text: string): Cards | undefined {
  const cards: Cards = new Map()
  for (const line of text.split(/\r?\n/)) {
    const match = /^GPU\[(\d+)\]\s*:\s*([^:]+?)\s*:\s*(.*?)\s*$/.exec(line)
    if (!match) continue
    const fields = cards.get(match[1]!) ?? new Map<string, string>()
    cards.set(match[1]!, fields.set(match[2]!.toLowerCase(), match[3]!))
  }
  return cards.size > 0 ? cards : undefined
}

/** The cards in any of its three forms; undefined when it is none of them, or JSON that is cut off. */
export function parseRocmSmi(text: string): Sighting[] | undefined {
  const cards = jsonCards(text) ?? csvCards(text) ?? textCards(text)
  if (!cards) return undefined
  const inOrder = [...cards].sort(([a], [b]) => a.localeCompare(b, 'en', { numeric: true }))
  return inOrder.map(([, fields]) => sightingOf(fields))
}

/** Which cards there are by JSON that is broken: what stands whole in it names them. Their memory is not believed. */
export function cardsInBrokenJson(text: string): Sighting[] {
  const cards = text.split(/"(?:card|gpu)\d+":\s*\{/).slice(1)
  return cards.flatMap(card => {
    const fields = [...card.matchAll(/"([^"\n]+)":\s*"([^"\n]*)"/g)].map(([, key, value]) => [
      key!.toLowerCase(),
      value!
    ])
    const { totalMemory: _, freeMemory: __, ...sighting } = sightingOf(new Map(fields as [string, string][]))
    return sighting.pciId === undefined && sighting.pciBus === undefined ? [] : [sighting]
  })
}

export const rocmSmi: Probe = {
  name: 'rocm-smi',
  platforms: ['linux'],
  async find(machine): Promise<Findings> {
    const questions = ['--showproductname', '--showid', '--showbus', '--showmeminfo', 'vram']
    let failure: string | undefined
    let gpus: Sighting[] = []
    // JSON of some versions is broken where their CSV is whole.
    for (const form of ['--json', '--csv']) {
      const printed = await machine.run('rocm-smi', [...questions, form])
      const cards = parseRocmSmi(printed.stdout)
      if (cards) return { gpus: foldPartitions(cards).gpus }
      if (gpus.length === 0) gpus = foldPartitions(cardsInBrokenJson(printed.stdout)).gpus
      failure = printed.failure
    }
    const outcome = failure ? 'failed' : 'unreadable'
    throw new ProbeFailure(outcome, failure ?? 'neither JSON nor CSV of rocm-smi can be read', { gpus })
  }
}
