//! Strongly connected components (Tarjan 1972), without recursion.

/// The components of a graph given as the successors of each node; each comes after those that it leads to.
pub(super) fn components(successors: &[Vec<usize>]) -> Vec<Vec<usize>> {
    const UNSEEN: usize = usize::MAX;
    let count = successors.len();
    let (mut index, mut low, mut open) = (vec![UNSEEN; count], vec![UNSEEN; count], vec![false; count]);
    let (mut stack, mut work, mut found, mut next) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for root in 0..count {
        if index[root] == UNSEEN {
            work.push((root, 0));
        }
        while let Some((node, at)) = work.last_mut() {
            let node = *node;
            if index[node] == UNSEEN {
                (index[node], low[node]) = (next, next);
                next += 1;
                stack.push(node);
                open[node] = true;
            }
            if let Some(&successor) = successors[node].get(*at) {
                *at += 1;
                if index[successor] == UNSEEN {
                    work.push((successor, 0));
                } else if open[successor] {
                    low[node] = low[node].min(index[successor]);
                }
                continue;
            }
            work.pop();
            if let Some((parent, _)) = work.last() {
                low[*parent] = low[*parent].min(low[node]);
            }
            if low[node] == index[node] {
                let from = stack.iter().rposition(|member| *member == node).unwrap_or(0);
                let component = stack.split_off(from);
                component.iter().for_each(|member| open[*member] = false);
                found.push(component);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::components;

    #[test]
    fn circles_are_found_and_come_after_what_they_lead_to() {
        let graph = vec![vec![1], vec![2, 4], vec![3], vec![1], vec![4], vec![0, 0], vec![]];
        let mut found = components(&graph);
        found.iter_mut().for_each(|component| component.sort_unstable());
        assert_eq!(found, [vec![4], vec![1, 2, 3], vec![0], vec![5], vec![6]]);
    }
}
