import OpenAI, { toFile } from 'openai'
import { type Corral, DEMO, until } from '../../../support/corral.ts'

export const openai = (corral: Corral, apiKey = 'any') =>
  new OpenAI({ baseURL: `${corral.url}/v1`, apiKey, maxRetries: 0 })

/** Returns a request line for the demo model. */
export function line(id: string, body: object = {}, url = '/v1/chat/completions'): object {
  const question = { model: DEMO, max_tokens: 8, messages: [{ role: 'user', content: `Say ${id}` }] }
  return { custom_id: id, method: 'POST', url, body: { ...question, ...body } }
}

export const textOf = (lines: readonly (object | string)[]) =>
  lines.map(each => (typeof each === 'string' ? each : JSON.stringify(each))).join('\n')

export async function sendFile(client: OpenAI, lines: readonly (object | string)[], name = 'lines.jsonl') {
  return await client.files.create({ file: await toFile(Buffer.from(textOf(lines)), name), purpose: 'batch' })
}

export async function begin(
  client: OpenAI,
  lines: readonly (object | string)[],
  more: Partial<OpenAI.BatchCreateParams> = {}
) {
  const { id } = await sendFile(client, lines)
  return await client.batches.create({
    input_file_id: id,
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
    ...more
  })
}

/** Waits until the batch has one of these statuses. */
export async function reaches(client: OpenAI, id: string, ...statuses: OpenAI.Batch['status'][]) {
  return await until(
    `the batch is ${statuses.join(' or ')}`,
    async () => {
      const batch = await client.batches.retrieve(id)
      return statuses.includes(batch.status) ? batch : undefined
    },
    120_000
  )
}

/** Reads the lines of a result file. */
export async function results(client: OpenAI, file: string | null | undefined): Promise<any[]> {
  if (!file) return []
  const text = await (await client.files.content(file)).text()
  return text
    .split('\n')
    .filter(Boolean)
    .map(each => JSON.parse(each))
}
