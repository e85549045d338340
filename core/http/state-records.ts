import type { StateChange, StateSnapshot, StateTopic, StateValue } from '../contracts/state-events.ts'

/** The state of a server, from the events of its `GET /api/events`. */
export class StateRecords {
  readonly #topics = new Map<StateTopic, Map<string, object>>()

  /** Applies an event. @returns topics with new, changed or removed records */
  apply(event: StateSnapshot | StateChange): Set<StateTopic> {
    const isSnapshot = 'records' in event
    const touched = new Set(isSnapshot ? this.#topics.keys() : [])
    if (isSnapshot) this.#topics.clear()
    for (const { topic, key } of isSnapshot ? [] : event.removed) {
      this.#of(topic).delete(key)
      touched.add(topic)
    }
    for (const { topic, key, value } of isSnapshot ? event.records : event.set) {
      const fields = Object.entries({ ...this.#of(topic).get(key), ...value })
      const known = isSnapshot ? fields : fields.filter(([, field]) => field !== null)
      this.#of(topic).set(key, Object.fromEntries(known))
      touched.add(topic)
    }
    return touched
  }

  all<Topic extends StateTopic>(topic: Topic): StateValue<Topic>[] {
    return [...this.#of(topic).values()] as StateValue<Topic>[]
  }

  #of(topic: StateTopic): Map<string, object> {
    const records = this.#topics.get(topic) ?? new Map<string, object>()
    this.#topics.set(topic, records)
    return records
  }
}
