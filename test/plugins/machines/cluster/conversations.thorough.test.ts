import t from 'tap'
import { DEMO, until } from '../../../support/corral.ts'
import { asker, converse, shareOf } from './conversations.ts'
import { getNodes, startNodes, startReadyGateway } from './support.ts'

/*
 * Real conversations over three nodes with real engines: cache hits by the engines' own counts, compared with one node
 * of the same memory and with round robin.
 */

const engines = (slots: number) => ({ config: `defaults:\n  num_parallel: ${slots}\n` })

t.setTimeout(900_000)

t.test('conversations find their cached prompts as they would at one node', async t => {
  const { nodes, members } = await startNodes(t, 3, engines(4))
  const { nodes: alone } = await startNodes(t, 1, engines(12))
  const gateway = await startReadyGateway(t, members)
  await Promise.all([...nodes, ...alone].map(node => node.json('/api/load', { model: DEMO })))
  await until('all have it', async () => (await getNodes(gateway)).every(({ loaded }) => loaded.length === 1))

  const single = shareOf(await converse('one node', asker(alone[0]!)))
  const clustered = shareOf(await converse('a front', asker(gateway)))
  const generated: number[] = await Promise.all(
    nodes.map(async node => (await node.json('/api/ps')).body.models[0].generated_tokens)
  )
  let next = 0
  const turns = shareOf(await converse('round robin', body => asker(nodes[next++ % 3]!)(body)))

  const spread = (Math.max(...generated) * 3) / generated.reduce((sum, each) => sum + each, 0)
  t.comment(`hits: one node ${single.toFixed(3)}, corral ${clustered.toFixed(3)}, round robin ${turns.toFixed(3)}`)
  t.comment(`tokens: ${generated.join(', ')}; spread ${spread.toFixed(2)}`)
  t.ok(clustered >= 0.9 * single, `${clustered} of ${single}`)
  t.ok(clustered > turns, `${clustered}, and ${turns} by round robin`)
  t.ok(spread <= 1.5, `spread ${spread}`)
})

t.test('conversations are found on the nodes that stored them if there are more of them than slots', async t => {
  const { nodes, members } = await startNodes(t, 2, engines(1))
  const gateway = await startReadyGateway(t, members)
  await Promise.all(nodes.map(node => node.json('/api/load', { model: DEMO })))
  await until('all have it', async () => (await getNodes(gateway)).every(({ loaded }) => loaded.length === 1))
  const share = shareOf(await converse('a crowd', asker(gateway)))
  // A single node with all conversations finds all of each prompt except the last answer and question.
  const single = shareOf(await converse('the same crowd', asker(nodes[0]!)))
  t.comment(`hits: one node ${single.toFixed(3)}, two nodes with a slot each ${share.toFixed(3)}`)
  t.ok(share >= 0.9 * single, `${share} of ${single}`)
})
