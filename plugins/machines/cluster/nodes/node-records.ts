import type { StateChange, StateSnapshot, StateTopic, StateValue } from '../../../../core/contracts/state-events.ts'

type Fields = Record<string, unknown>

/** The records of a node's event feed. */
export class NodeRecords {
  readonly #topics = new Map<string, Map<string, Fields>>()

  /** @returns topics with new or changed records */
  apply(event: StateSnapshot | StateChange): Set<string> {
    const isSnapshot = 'records' in event
    const touched = new Set<string>(isSnapshot ? this.#topics.keys() : [])
    if (isSnapshot) this.#topics.clear()
    else {
      for (const { topic, key } of event.removed) {
        this.#of(topic).delete(key)
        touched.add(topic)
      }
    }
    for (const { topic, key, value } of isSnapshot ? event.records : event.set) {
      const records = this.#of(topic)
      const merged: Fields = { ...records.get(key), ...value }
      if (!isSnapshot) for (const name of Object.keys(merged)) if (merged[name] === null) delete merged[name]
      records.set(key, merged)
      touched.add(topic)
    }
    return touched
  }

  all<Topic extends StateTopic>(topic: Topic): StateValue<Topic>[] {
    return [...this.#of(topic).values()] as StateValue<Topic>[]
  }

  #of(topic: string): Map<string, Fields> {
    const records = this.#topics.get(topic) ?? new Map<string, Fields>()
    this.#topics.set(topic, records)
    return records
  }
}
